"""Kernels that the second model runner samples with."""

from __future__ import annotations

from ci.kernel_cases.vllm_own import LENGTH, REQUESTS, TOKENS, VOCAB, bf16, f32, i32, i64, own

_GPU = "v1.worker.gpu."
_SAMPLE = _GPU + "sample."
_LABEL = f"{REQUESTS} rows of {VOCAB}"
_rows = i32(REQUESTS)
_starts = i32(REQUESTS + 1)
_logits = f32(REQUESTS, VOCAB)
_all_tokens = i32(REQUESTS, LENGTH)
_WORDS = -(-VOCAB // 32)

CASES = [
    own(
        "v2_sampling.min_p",
        _LABEL,
        _SAMPLE + "min_p:apply_min_p",
        *(_logits, _rows, f32(REQUESTS)),
    ),
    own(
        "v2_sampling.logit_bias",
        f"{_LABEL}, up to 1024 tokens",
        _SAMPLE + "logit_bias:apply_logit_bias",
        *(_logits, _rows, i64(REQUESTS), _rows, i32(REQUESTS, 1024), _rows),
        *(i32(REQUESTS, 1024), f32(REQUESTS, 1024), _rows, _rows, i32(REQUESTS, 128)),
    ),
    own(
        "v2_sampling.bad_words",
        f"{_LABEL}, up to 128 words",
        _SAMPLE + "bad_words:apply_bad_words",
        *(_logits, _rows, i32(REQUESTS, 1024), i32(REQUESTS, 129), _rows, _all_tokens),
        *(_rows, _rows, _rows, _rows, 128),
    ),
    own(
        "v2_sampling.bincount",
        f"{REQUESTS} requests of up to {LENGTH} tokens",
        _SAMPLE + "penalties:bincount",
        *(_rows, _all_tokens, _rows, _rows, i32(REQUESTS, _WORDS), i32(REQUESTS, VOCAB), LENGTH),
    ),
    own(
        "v2_sampling.prompt_logprobs_token_ids",
        f"{REQUESTS} requests, {TOKENS} tokens",
        _SAMPLE + "prompt_logprob:get_prompt_logprobs_token_ids",
        *(TOKENS, _starts, _rows, _rows, _all_tokens),
    ),
    *(
        own("v2_sampling.num_nans", f"{_LABEL} {name}", _GPU + "metrics.logits:get_num_nans", kind)
        for name, kind in (("float32", _logits), ("bfloat16", bf16(REQUESTS, VOCAB)))
    ),
    *(
        own(
            "v2_sampling.apply_grammar_bitmask",
            f"{_LABEL} {name}",
            _GPU + "structured_outputs:_apply_grammar_bitmask_kernel",
            *(kind, VOCAB, _rows, i32(REQUESTS, _WORDS), _WORDS, VOCAB),
            grid=(REQUESTS, -(-VOCAB // 8192)),
            BLOCK_SIZE=8192,
        )
        for name, kind in (("float32", _logits), ("bfloat16", bf16(REQUESTS, VOCAB)))
    ),
    *(
        own(
            "sampling.apply_top_k_top_p",
            f"{_LABEL}, {name}",
            "v1.sample.ops.topk_topp_triton:_topk_topp_kernel",
            *(_logits, f32(48, VOCAB), f32(200), f32(200), _rows, f32(REQUESTS)),
            grid=(48,),
            BATCH_SIZE=REQUESTS,
            MASK_VALUE=float("-inf"),
            VOCAB_SIZE=VOCAB,
            BLOCK_SIZE=8192,
            BLOCK_SIZE_TRUNC=4096,
            TOPK_ENABLED="k" in name,
            TOPP_ENABLED="p" in name,
        )
        for name in ("k", "p", "k and p")
    ),
]
