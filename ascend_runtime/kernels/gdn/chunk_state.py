"""The states of the chunked gated delta rule: handed from chunk to chunk of a sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_runtime.device import cores
from ascend_runtime.gdn.chunks import CHUNK_SIZE
from ascend_runtime.kernels.launch import matrix_grid
from ascend_runtime.reference.gdn.chunk_inputs import Sequences


@triton.jit(
    do_not_specialize=["sequences", "tokens", "key_heads", "heads", "keys", "values"],
)
def _state_kernel(
    k,
    w,
    u,
    decay,
    initial,
    states,
    news,
    final,
    cu_seqlens,
    chunk_offsets,
    sequences,
    tokens,
    key_heads,
    heads,
    keys,
    values,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    HAS_INITIAL: tl.constexpr,
    HAS_FINAL: tl.constexpr,
):
    row = tl.arange(0, CHUNK)
    key = tl.arange(0, KEYS)
    slices = tl.cdiv(values, VALUES)
    for task in range(tl.program_id(0), sequences * heads * slices, tl.num_programs(0)):
        value = task % slices * VALUES + tl.arange(0, VALUES)
        head = task // slices % heads
        sequence = task // slices // heads
        start = tl.load(cu_seqlens + sequence).to(tl.int32)
        end = tl.load(cu_seqlens + sequence + 1).to(tl.int32)
        chunk = tl.load(chunk_offsets + sequence).to(tl.int32)

        cell = value[:, None] * keys + key[None, :]
        is_cell = (value < values)[:, None] & (key < keys)[None, :]
        line = tl.cast(sequence * heads + head, tl.int64) * values * keys
        state = tl.zeros([VALUES, KEYS], dtype=tl.float32)
        if HAS_INITIAL:
            state += tl.load(initial + line + cell, mask=is_cell, other=0.0).to(tl.float32)
        for first in range(start, end, CHUNK):
            rows = tl.minimum(end - first, CHUNK)
            inside = row < rows
            token = tl.cast(first, tl.int64)
            is_key = inside[:, None] & (key < keys)[None, :]
            is_value = inside[:, None] & (value < values)[None, :]
            rounded = state.to(k.dtype.element_ty)
            stored = (tl.cast(chunk, tl.int64) * heads + head) * values * keys
            tl.store(states + stored + cell, rounded, mask=is_cell)
            chunk += 1

            place = row[:, None] * (heads * keys) + key[None, :]
            w_tile = tl.load(w + (token * heads + head) * keys + place, mask=is_key, other=0.0)
            place = row[:, None] * (heads * values) + value[None, :]
            at = (token * heads + head) * values
            new = tl.load(u + at + place, mask=is_value, other=0.0).to(tl.float32)
            new -= tl.dot(w_tile, tl.trans(rounded), input_precision="ieee")
            tl.store(news + at + place, new.to(news.dtype.element_ty), mask=is_value)

            gate = tl.load(decay + head * tokens + first + row, mask=inside, other=0.0)
            last = tl.load(decay + head * tokens + first + rows - 1)
            left = new * tl.exp(tl.where(inside, last - gate, 0.0))[:, None]
            place = row[:, None] * (key_heads * keys) + key[None, :]
            k_head = k + (token * key_heads + head // (heads // key_heads)) * keys
            k_tile = tl.load(k_head + place, mask=is_key, other=0.0)
            state *= tl.exp(last)
            state += tl.dot(tl.trans(left.to(k.dtype.element_ty)), k_tile, input_precision="ieee")
        if HAS_FINAL:
            tl.store(final + line + cell, state, mask=is_cell)


def states(
    k: torch.Tensor,
    w: torch.Tensor,
    u: torch.Tensor,
    decay: torch.Tensor,
    initial_state: torch.Tensor | None,
    output_final_state: bool,
    sequences: Sequences,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return the states before each chunk [NT, HV, V, K], the new values and the final states.

    Each chunk of a sequence, from the state S before it: new values u - w S^T [tokens, HV, V], then
    S <- S exp(G_last) + (new values * exp(G_last - G))^T k, in float32.
    """
    (tokens, key_heads, keys), (heads, values) = k.shape, u.shape[1:]
    count = len(sequences.cu_seqlens) - 1
    block = max(16, triton.next_power_of_2(keys))
    # A tile of the state takes 32 KiB; with a few long sequences half of it, for more tasks.
    few = count * heads * triton.cdiv(values, 64) < cores()[0]
    rows = 32 if few or block > 128 else 64
    before = k.new_empty(len(sequences.chunk_indices), heads, values, keys)
    news = torch.empty_like(u)
    final = None
    if output_final_state:
        final = k.new_empty(count, heads, values, keys, dtype=torch.float32)
    _state_kernel[matrix_grid(count * heads * triton.cdiv(values, rows))](
        k,
        w,
        u,
        decay,
        initial_state,
        before,
        news,
        final,
        sequences.cu_seqlens,
        sequences.chunk_offsets,
        count,
        tokens,
        key_heads,
        heads,
        keys,
        values,
        CHUNK=CHUNK_SIZE,
        KEYS=block,
        VALUES=rows,
        HAS_INITIAL=initial_state is not None,
        HAS_FINAL=output_final_state,
    )
    return before, news, final
