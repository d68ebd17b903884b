"""The outputs of the chunked gated delta rule, from the states and new values of the chunks."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ascend_runtime.gdn.chunks import CHUNK_SIZE
from ascend_runtime.kernels.gdn.chunk_prepare import chunk_of, columns
from ascend_runtime.kernels.launch import matrix_grid
from ascend_runtime.reference.gdn.chunk_inputs import Sequences


@triton.jit(do_not_specialize=["scale", "chunks", "tokens", "key_heads", "heads", "keys", "values"])
def _output_kernel(
    q,
    k,
    news,
    states,
    decay,
    o,
    scale,
    cu_seqlens,
    chunk_indices,
    chunks,
    tokens,
    key_heads,
    heads,
    keys,
    values,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
):
    row = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), chunks * heads, tl.num_programs(0)):
        start, rows = chunk_of(cu_seqlens, chunk_indices, task // heads, CHUNK)
        head = task % heads
        inside = row < rows
        token = start.to(tl.int64)
        gate = tl.load(decay + head * tokens + start + row, mask=inside, other=0.0)
        key_head = (token * key_heads + head // (heads // key_heads)) * keys
        value_head = (token * heads + head) * values
        state_head = states + tl.cast(task, tl.int64) * values * keys

        products = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
        for first in range(0, keys, KEYS):
            key = first + tl.arange(0, KEYS)
            place = row[:, None] * (key_heads * keys) + key[None, :]
            mask = inside[:, None] & (key < keys)[None, :]
            q_tile = tl.load(q + key_head + place, mask=mask, other=0.0)
            k_tile = tl.load(k + key_head + place, mask=mask, other=0.0)
            products += tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        lower = (row[:, None] >= row[None, :]) & inside[:, None]
        # Selected before the exponential: above the diagonal and behind the end it may overflow.
        decays = tl.exp(tl.where(lower, gate[:, None] - gate[None, :], 0.0))
        within = tl.where(lower, products * decays, 0.0).to(k.dtype.element_ty)

        for begin in range(0, values, VALUES):
            value = begin + tl.arange(0, VALUES)
            before = tl.zeros([CHUNK, VALUES], dtype=tl.float32)
            for first in range(0, keys, KEYS):
                key = first + tl.arange(0, KEYS)
                mask = inside[:, None] & (key < keys)[None, :]
                place = row[:, None] * (key_heads * keys) + key[None, :]
                q_tile = tl.load(q + key_head + place, mask=mask, other=0.0)
                cell = value[:, None] * keys + key[None, :]
                is_cell = (value < values)[:, None] & (key < keys)[None, :]
                state = tl.load(state_head + cell, mask=is_cell, other=0.0)
                before += tl.dot(q_tile, tl.trans(state), input_precision="ieee")
            place = row[:, None] * (heads * values) + value[None, :]
            mask = inside[:, None] & (value < values)[None, :]
            new = tl.load(news + value_head + place, mask=mask, other=0.0)
            out = before * tl.exp(gate)[:, None]
            out += tl.dot(within, new, input_precision="ieee")
            out = (out * scale).to(o.dtype.element_ty)
            tl.store(o + value_head + place, out, mask=mask)


def outputs(
    q: torch.Tensor,
    k: torch.Tensor,
    news: torch.Tensor,
    states: torch.Tensor,
    decay: torch.Tensor,
    scale: float,
    sequences: Sequences,
) -> torch.Tensor:
    """Return the outputs [tokens, HV, V] of q's dtype.

    scale * (q S^T exp(G) + tril(q k^T exp(G_i - G_j)) new values), from the states S before chunks.
    """
    (tokens, key_heads, keys), (heads, values) = k.shape, news.shape[1:]
    chunks = len(sequences.chunk_indices)
    o = torch.empty_like(news)
    _output_kernel[matrix_grid(chunks * heads)](
        q,
        k,
        news,
        states,
        decay,
        o,
        scale,
        sequences.cu_seqlens,
        sequences.chunk_indices,
        chunks,
        tokens,
        key_heads,
        heads,
        keys,
        values,
        CHUNK=CHUNK_SIZE,
        KEYS=columns(keys),
        VALUES=columns(values),
    )
    return o
