"""Kernels that the second model runner drafts and verifies with."""

from __future__ import annotations

from ci.kernel_cases.vllm_own import LENGTH, REQUESTS, TOKENS, VOCAB, bf16, f32, i32, i64, own

_SPEC = "v1.worker.gpu.spec_decode."
_VERIFY = _SPEC + "rejection_sampler:"
_EAGLE = _SPEC + "eagle.speculator:"
_HIDDEN = 4096
_DRAFTS = 3
_LABEL = f"{REQUESTS} requests, {_DRAFTS} drafts"
_LOGITS = REQUESTS * (_DRAFTS + 1)
_rows = i32(REQUESTS)
_starts = i32(REQUESTS + 1)
_probabilities = f32(_LOGITS, VOCAB)
_drafted = f32(REQUESTS, _DRAFTS, VOCAB)
_states = bf16(TOKENS, _HIDDEN)

CASES = [
    own(
        "v2_drafts.strict_rejection_sample",
        _LABEL,
        _VERIFY + "strict_rejection_sample",
        *(i64(_LOGITS), i32(_LOGITS), _starts, _DRAFTS),
    ),
    own(
        "v2_drafts.probabilistic_rejection_sample",
        _LABEL,
        _VERIFY + "_probabilistic_rejection_sample_kernel",
        *(i64(REQUESTS, _DRAFTS + 1), _DRAFTS + 1, i64(REQUESTS), i32(_LOGITS)),
        *(_probabilities, VOCAB, _drafted, _DRAFTS * VOCAB, VOCAB),
        *(_starts, i64(_LOGITS), _rows, i64(REQUESTS)),
        grid=(REQUESTS,),
    ),
    own(
        "v2_drafts.compute_residual_logits",
        f"{_LABEL}, {VOCAB} tokens",
        _VERIFY + "_compute_residual_logits_kernel",
        *(f32(REQUESTS, VOCAB), VOCAB, i64(REQUESTS), _probabilities, VOCAB),
        *(_probabilities, VOCAB, _drafted, _DRAFTS * VOCAB, VOCAB),
        *(i64(REQUESTS), _starts, i64(_LOGITS), VOCAB),
        grid=(REQUESTS, -(-VOCAB // 1024)),
        BLOCK_SIZE=1024,
    ),
    own(
        "v2_drafts.prepare_eagle_inputs",
        f"{REQUESTS} requests, {TOKENS} tokens",
        _EAGLE + "_prepare_eagle_inputs_kernel",
        *(i64(REQUESTS), i32(TOKENS), i64(TOKENS), i32(TOKENS), i64(TOKENS)),
        *(_rows, i64(REQUESTS, 1), _rows, _rows, _rows, _starts),
        grid=(REQUESTS,),
        BLOCK_SIZE=1024,
    ),
    own(
        "v2_drafts.prepare_eagle_docode",
        f"{REQUESTS} requests, {_HIDDEN} wide",
        _EAGLE + "_prepare_eagle_docode_kernel",
        *(i64(REQUESTS), _states, _HIDDEN, i64(REQUESTS), _rows, _rows, i32(TOKENS)),
        *(i64(TOKENS), _states, _HIDDEN, _starts, _rows, _HIDDEN, LENGTH, REQUESTS),
        grid=(REQUESTS + 1,),
        BLOCK_SIZE=1024,
    ),
    own(
        "v2_drafts.update_eagle_inputs",
        f"{REQUESTS} requests, {_HIDDEN} wide",
        _EAGLE + "_update_eagle_inputs_kernel",
        *(i32(TOKENS), i64(TOKENS), _states, _HIDDEN, _rows, LENGTH),
        *(i64(REQUESTS), bf16(REQUESTS, _HIDDEN), _HIDDEN, _HIDDEN),
        grid=(REQUESTS,),
        BLOCK_SIZE=1024,
    ),
]
