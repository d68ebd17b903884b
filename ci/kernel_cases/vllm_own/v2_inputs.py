"""Kernels that prepare a step of the second model runner."""

from __future__ import annotations

from ci.kernel_cases.vllm_own import LENGTH, REQUESTS, TOKENS, i32, i64, own, u64

_GPU = "v1.worker.gpu."
_BATCH = _GPU + "input_batch:"
_LABEL = f"{REQUESTS} requests, {TOKENS} tokens"
_DRAFTS = 3
_LOGITS = REQUESTS * (_DRAFTS + 1)
_BLOCKS = LENGTH // 128
_states = i32(REQUESTS)
_starts = i32(REQUESTS + 1)
_all_tokens = i32(REQUESTS, LENGTH)

CASES = [
    own(
        "v2_inputs.prepare_prefill_inputs",
        _LABEL,
        _BATCH + "prepare_prefill_inputs",
        *(i32(TOKENS), _states, _states, _starts, _all_tokens, _states, _states),
    ),
    own(
        "v2_inputs.prepare_pos_seq_lens",
        _LABEL,
        _BATCH + "prepare_pos_seq_lens",
        *(_states, _starts, _states, i64(TOKENS), _states),
    ),
    *(
        own(
            "v2_inputs.combine_sampled_and_draft_tokens",
            f"{REQUESTS} requests, up to {drafts} drafts",
            _BATCH + "combine_sampled_and_draft_tokens",
            *(i32(TOKENS), _states, i64(REQUESTS, 1), _starts, _states, _states),
            *(i64(REQUESTS, drafts), _starts, _LOGITS),
        )
        for drafts in (1, _DRAFTS)
    ),
    own(
        "v2_inputs.get_num_sampled_and_rejected",
        f"{REQUESTS} requests",
        _BATCH + "get_num_sampled_and_rejected",
        *(_states, _states, _starts, _states, _states),
    ),
    own(
        "v2_inputs.post_update_pool",
        f"{REQUESTS} requests",
        _BATCH + "post_update_pool",
        *(_states, _states, _starts),
    ),
    own(
        "v2_inputs.expand_idx_mapping",
        f"{REQUESTS} requests, up to {_DRAFTS} drafts",
        _BATCH + "expand_idx_mapping",
        *(_states, _LOGITS, _starts, _DRAFTS + 1),
    ),
    own(
        "v2_inputs.gather_block_tables",
        f"{REQUESTS} requests of up to {_BLOCKS} blocks, 2 groups",
        _GPU + "block_table:_gather_block_tables_kernel",
        *(_states, u64(2), u64(2), i64(2), i32(2, REQUESTS), REQUESTS, REQUESTS, _BLOCKS),
        grid=(2, REQUESTS),
        BLOCK_SIZE=1024,
    ),
    own(
        "slots.compute_slot_mappings",
        f"{_LABEL}, 2 groups",
        _GPU + "block_table:_compute_slot_mappings_kernel",
        *(TOKENS, _states, _starts, i64(TOKENS), u64(2), i64(2), i32(2), i64(2, TOKENS)),
        *(TOKENS, 0),
        grid=(2, REQUESTS + 1),
        CP_SIZE=1,
        CP_INTERLEAVE=1,
        PAD_ID=-1,
        TRITON_BLOCK_SIZE=1024,
    ),
    own(
        "v2_inputs.apply_write",
        f"{REQUESTS} rows of up to {LENGTH} tokens",
        _GPU + "buffer_utils:_apply_write_kernel",
        *(_all_tokens, LENGTH, _states, _states, i32(TOKENS), _states),
        grid=(REQUESTS,),
        BLOCK_SIZE=1024,
    ),
    own(
        "v2_inputs.prepare_rope_positions",
        f"{_LABEL}, 3 axes",
        _GPU + "mm.rope:_prepare_rope_positions_kernel",
        *(i64(3, TOKENS + 1), TOKENS + 1, i32(3 * REQUESTS, LENGTH), 3 * LENGTH, LENGTH),
        *(_states, _states, _starts, _states, _states),
        grid=(REQUESTS,),
        BLOCK_SIZE=1024,
        NUM_DIMS=3,
    ),
    own(
        "v2_inputs.dcp_local_seq_lens",
        f"{REQUESTS} requests, 2 ranks",
        _GPU + "cp_utils:prepare_dcp_local_seq_lens",
        *(_states, _states, REQUESTS - 3, 2, 1, 1),
    ),
]
