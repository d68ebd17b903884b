"""What the chunked gated delta rule needs of each chunk by itself: gates, and keys against keys."""

from __future__ import annotations

from typing import Final

import torch
import triton
import triton.language as tl

from ascend_runtime.gdn.chunks import CHUNK_SIZE
from ascend_runtime.kernels.launch import matrix_grid, vector_grid
from ascend_runtime.reference.gdn.chunk_inputs import Sequences

#: Heads of a tile of gates.
_HEADS: Final = 32


@triton.jit
def chunk_of(cu_seqlens, chunk_indices, chunk, CHUNK: tl.constexpr):
    """Return the first token of a chunk, and how many it has."""
    sequence = tl.load(chunk_indices + 2 * chunk).to(tl.int32)
    number = tl.load(chunk_indices + 2 * chunk + 1).to(tl.int32)
    start = tl.load(cu_seqlens + sequence).to(tl.int32) + number * CHUNK
    end = tl.load(cu_seqlens + sequence + 1).to(tl.int32)
    return start, tl.minimum(end - start, CHUNK)


@triton.jit(do_not_specialize=["chunks", "heads", "tokens"])
def _gates_kernel(
    g,
    beta,
    decay,
    strength,
    cu_seqlens,
    chunk_indices,
    chunks,
    heads,
    tokens,
    CHUNK: tl.constexpr,
    HEADS: tl.constexpr,
):
    row = tl.arange(0, CHUNK)
    slices = tl.cdiv(heads, HEADS)
    for task in range(tl.program_id(0), chunks * slices, tl.num_programs(0)):
        start, rows = chunk_of(cu_seqlens, chunk_indices, task // slices, CHUNK)
        head = task % slices * HEADS + tl.arange(0, HEADS)
        mask = (row < rows)[:, None] & (head < heads)[None, :]
        place = (start + row)[:, None] * heads + head[None, :]
        sums = tl.cumsum(tl.load(g + place, mask=mask, other=0.0).to(tl.float32), axis=0)
        betas = tl.load(beta + place, mask=mask, other=0.0).to(tl.float32)
        mask = (head < heads)[:, None] & (row < rows)[None, :]
        place = head[:, None] * tokens + (start + row)[None, :]
        tl.store(decay + place, tl.trans(sums), mask=mask)
        tl.store(strength + place, tl.trans(betas), mask=mask)


@triton.jit
def _inverse(a, CHUNK: tl.constexpr):
    """Return (I + a)^-1 of a strictly lower triangular tile."""
    # The diagonal blocks of 16, all at once, by elimination: a column a step.
    BLOCKS: tl.constexpr = CHUNK // 16
    block = tl.arange(0, BLOCKS)
    diagonal = (block[:, None] == block[None, :])[:, None, :, None]
    blocks = tl.sum(tl.where(diagonal, tl.reshape(a, (BLOCKS, 16, BLOCKS, 16)), 0.0), axis=2)
    row = tl.arange(0, 16)[None, :, None]
    column = tl.arange(0, 16)[None, None, :]
    x = tl.where(row == column, 1.0, tl.zeros([BLOCKS, 16, 16], dtype=tl.float32))
    for step in range(15):
        factor = tl.sum(tl.where(column == step, blocks, 0.0), axis=2)
        done = tl.sum(tl.where(row == step, x, 0.0), axis=1)
        x -= factor[:, :, None] * done[:, None, :]
    x = tl.reshape(tl.where(diagonal, x[:, :, None, :], 0.0), (CHUNK, CHUNK))
    row = tl.arange(0, CHUNK)[:, None]
    column = tl.arange(0, CHUNK)[None, :]
    # Two blocks and what is below the first make one of twice the size.
    for level in tl.static_range(2):
        size = 16 << level
        below = (row // (2 * size) == column // (2 * size)) & (row // size > column // size)
        product = tl.dot(tl.where(below, a, 0.0), x, input_precision="ieee")
        x -= tl.dot(x, product, input_precision="ieee")
    return x


@triton.jit(do_not_specialize=["chunks", "tokens", "key_heads", "heads", "keys"])
def _inverse_kernel(
    k,
    decay,
    strength,
    inverses,
    cu_seqlens,
    chunk_indices,
    chunks,
    tokens,
    key_heads,
    heads,
    keys,
    CHUNK: tl.constexpr,
    KEYS: tl.constexpr,
):
    row = tl.arange(0, CHUNK)
    for task in range(tl.program_id(0), chunks * heads, tl.num_programs(0)):
        start, rows = chunk_of(cu_seqlens, chunk_indices, task // heads, CHUNK)
        head = task % heads
        inside = row < rows
        gate = tl.load(decay + head * tokens + start + row, mask=inside, other=0.0)
        beta = tl.load(strength + head * tokens + start + row, mask=inside, other=0.0)
        k_chunk = k + (start.to(tl.int64) * key_heads + head // (heads // key_heads)) * keys

        products = tl.zeros([CHUNK, CHUNK], dtype=tl.float32)
        for first in range(0, keys, KEYS):
            column = first + tl.arange(0, KEYS)
            mask = inside[:, None] & (column < keys)[None, :]
            place = row[:, None] * (key_heads * keys) + column[None, :]
            tile = tl.load(k_chunk + place, mask=mask, other=0.0)
            products += tl.dot(tile, tl.trans(tile), input_precision="ieee")
        lower = (row[:, None] > row[None, :]) & inside[:, None]
        # Selected before the exponential: above the diagonal and behind the end it may overflow.
        decays = tl.exp(tl.where(lower, gate[:, None] - gate[None, :], 0.0))
        a = tl.where(lower, products * decays * beta[:, None], 0.0)
        block = inverses + tl.cast(task, tl.int64) * (CHUNK * CHUNK)
        inverse = _inverse(a, CHUNK).to(inverses.dtype.element_ty)
        tl.store(block + row[:, None] * CHUNK + row[None, :], inverse)


@triton.jit(do_not_specialize=["chunks", "tokens", "key_heads", "heads", "keys", "values"])
def _w_u_kernel(
    k,
    v,
    decay,
    strength,
    inverses,
    w,
    u,
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
        beta = tl.load(strength + head * tokens + start + row, mask=inside, other=0.0)
        gate = tl.load(decay + head * tokens + start + row, mask=inside, other=0.0)
        k_chunk = k + (start.to(tl.int64) * key_heads + head // (heads // key_heads)) * keys
        w_chunk = w + (start.to(tl.int64) * heads + head) * keys
        v_chunk = v + (start.to(tl.int64) * heads + head) * values
        u_chunk = u + (start.to(tl.int64) * heads + head) * values
        block = inverses + tl.cast(task, tl.int64) * (CHUNK * CHUNK)
        inverse = tl.load(block + row[:, None] * CHUNK + row[None, :])

        scale = beta * tl.exp(gate)
        for first in range(0, keys, KEYS):
            column = first + tl.arange(0, KEYS)
            mask = inside[:, None] & (column < keys)[None, :]
            place = row[:, None] * (key_heads * keys) + column[None, :]
            tile = tl.load(k_chunk + place, mask=mask, other=0.0).to(tl.float32)
            tile = (tile * scale[:, None]).to(k.dtype.element_ty)
            out = tl.dot(inverse, tile, input_precision="ieee").to(w.dtype.element_ty)
            tl.store(w_chunk + row[:, None] * (heads * keys) + column[None, :], out, mask=mask)
        for first in range(0, values, VALUES):
            column = first + tl.arange(0, VALUES)
            mask = inside[:, None] & (column < values)[None, :]
            place = row[:, None] * (heads * values) + column[None, :]
            tile = tl.load(v_chunk + place, mask=mask, other=0.0).to(tl.float32)
            tile = (tile * beta[:, None]).to(v.dtype.element_ty)
            out = tl.dot(inverse, tile, input_precision="ieee").to(u.dtype.element_ty)
            tl.store(u_chunk + place, out, mask=mask)


def columns(size: int) -> int:
    """Return how many columns of keys or values a tile has: all that are, or slices of them."""
    block = max(16, triton.next_power_of_2(size))
    if block <= 128:
        return int(block)
    return 64 if size % 128 else 128


def gates(
    g: torch.Tensor, beta: torch.Tensor, sequences: Sequences
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return g [tokens, HV] summed up from the start of each chunk, and beta.

    Both are float32 [HV, tokens]: with a head's numbers side by side, later loads are whole.
    """
    tokens, heads = g.shape
    decay, strength = g.new_empty(2, heads, tokens, dtype=torch.float32).unbind()
    chunks = len(sequences.chunk_indices)
    block = min(_HEADS, triton.next_power_of_2(heads))
    _gates_kernel[vector_grid(chunks * triton.cdiv(heads, block))](
        g,
        beta,
        decay,
        strength,
        sequences.cu_seqlens,
        sequences.chunk_indices,
        chunks,
        heads,
        tokens,
        CHUNK=CHUNK_SIZE,
        HEADS=block,
    )
    return decay, strength


def inverses(
    k: torch.Tensor, decay: torch.Tensor, strength: torch.Tensor, sequences: Sequences
) -> torch.Tensor:
    """Return (I + A)^-1 [NT, HV, 64, 64] of k's dtype, of each chunk and value head.

    A[i, j] = beta_i (k_i k_j) exp(G_i - G_j) for j < i, else 0; k is [tokens, H, K], G are sums.
    """
    tokens, key_heads, keys = k.shape
    heads, chunks = len(decay), len(sequences.chunk_indices)
    out = k.new_empty(chunks, heads, CHUNK_SIZE, CHUNK_SIZE)
    _inverse_kernel[matrix_grid(chunks * heads)](
        k,
        decay,
        strength,
        out,
        sequences.cu_seqlens,
        sequences.chunk_indices,
        chunks,
        tokens,
        key_heads,
        heads,
        keys,
        CHUNK=CHUNK_SIZE,
        KEYS=columns(keys),
    )
    return out


def w_and_u(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    strength: torch.Tensor,
    inverse: torch.Tensor,
    sequences: Sequences,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inverse (beta exp(G) k) [tokens, HV, K] and inverse (beta v) [tokens, HV, V]."""
    (tokens, key_heads, keys), (heads, values) = k.shape, v.shape[1:]
    chunks = len(sequences.chunk_indices)
    w, u = k.new_empty(tokens, heads, keys), torch.empty_like(v)
    _w_u_kernel[matrix_grid(chunks * heads)](
        k,
        v,
        decay,
        strength,
        inverse,
        w,
        u,
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
    return w, u
