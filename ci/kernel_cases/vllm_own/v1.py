"""Kernels of the first model runner."""

from __future__ import annotations

from ci.kernel_cases.vllm_own import (
    LENGTH,
    REQUESTS,
    TOKENS,
    VOCAB,
    flags,
    i32,
    i64,
    own,
    u64,
)

_WORKER = "v1.worker."
_DRAFT = "v1.spec_decode.utils:"
_DRAFTS = 3
_rows = i32(REQUESTS)
_starts = i32(REQUESTS + 1)
_tokens = i32(TOKENS)
#: Layers of gated delta nets of Qwen3-Next, with two states each.
_STATES = 36 * 2
#: Its other layers have keys and values apart, in blocks of 544 tokens, 2 heads and 256 bfloat16.
_SEGMENTS = 12 * 2
_PAGE = 544 * 2 * 256 * 2 // 4

CASES = [
    *(
        own(
            "v1.batch_memcpy",
            f"{requests} requests, Qwen3-Next",
            _WORKER + "mamba_utils:batch_memcpy",
            *(i64(requests * _STATES), i64(requests * _STATES), i32(requests * _STATES)),
            edited=True,
        )
        for requests in (256, 1024)
    ),
    own(
        "v1.zero_kv_blocks",
        "20 blocks, Qwen3-Next",
        _WORKER + "utils:_zero_kv_blocks_kernel",
        *(u64(_SEGMENTS), i64(20), 20),
        grid=(20 * _SEGMENTS * (_PAGE // 1024),),
        N_SEGS=_SEGMENTS,
        PAGE_SIZE_EL=_PAGE,
        BLOCK_SIZE=1024,
    ),
    own(
        "rejection.expand",
        f"{REQUESTS} requests",
        "v1.sample.rejection_sampler:expand_kernel",
        *(i32(REQUESTS * _DRAFTS), _rows, _rows, 0, 1),
        grid=(REQUESTS,),
        MAX_NUM_TOKENS=128,
    ),
    own(
        "v1.eagle_step_slot_mapping_metadata",
        f"{REQUESTS} requests",
        _DRAFT + "eagle_step_update_slot_mapping_and_metadata",
        *(i64(REQUESTS), i32(REQUESTS, LENGTH // 128), _rows, 128, LENGTH),
        *(i64(REQUESTS), i64(REQUESTS)),
    ),
    own(
        "v1.eagle_prepare_inputs_padded",
        f"{REQUESTS} requests",
        _DRAFT + "eagle_prepare_inputs_padded_kernel",
        *(_rows, _rows, _starts, _rows, _rows, REQUESTS),
        grid=(REQUESTS,),
    ),
    own(
        "v1.eagle_prepare_next_token_padded",
        f"{REQUESTS} requests, {_DRAFTS} drafts",
        _DRAFT + "eagle_prepare_next_token_padded_kernel",
        *(i32(REQUESTS, _DRAFTS + 1), flags(REQUESTS), _rows, _rows, _rows),
        *(VOCAB, _DRAFTS + 1, REQUESTS, _DRAFTS + 1),
        grid=(REQUESTS,),
        BLOCK_SIZE_TOKENS=4,
    ),
    *(
        own(
            "v1.copy_and_expand_eagle_inputs",
            f"{REQUESTS} requests, {TOKENS} tokens{', shifted' if shifted else ''}",
            _DRAFT + "copy_and_expand_eagle_inputs_kernel",
            *(_tokens, i64(TOKENS), _rows, _tokens, i64(TOKENS), flags(TOKENS), flags(TOKENS)),
            *(_rows, _tokens, _starts, _rows, 0, 151666, TOKENS, 1, shifted),
            grid=(REQUESTS, -(-TOKENS // 256)),
            BLOCK_SIZE_TOKENS=256,
        )
        for shifted in (False, True)
    ),
]
