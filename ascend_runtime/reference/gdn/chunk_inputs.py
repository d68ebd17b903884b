"""What the chunked gated delta rule is given: checked, and cut into sequences and chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ascend_runtime.gdn.chunks import build_chunk_metadata

#: Elements of a key that vLLM's own kernel takes at most.
MOST_KEYS: Final = 256


@dataclass(frozen=True)
class Sequences:
    """The N sequences of a call and their NT chunks of 64 tokens, integers on the device.

    Tokens are counted over the whole batch: `cu_seqlens` [N + 1] is where each sequence begins and
    the last one ends. `chunk_indices` [NT, 2] and `chunk_offsets` [N + 1] are as in
    `ascend_runtime.gdn.GDNChunkMeta`.
    """

    cu_seqlens: torch.Tensor
    chunk_indices: torch.Tensor
    chunk_offsets: torch.Tensor


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    initial_state: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
) -> None:
    """Refuse what vLLM's function does, and shapes that do not fit each other."""
    batch, tokens, key_heads, keys = k.shape
    heads, values = v.shape[-2:]
    assert q.dtype == k.dtype == v.dtype, "q, k and v must be of one dtype"
    assert q.dtype != torch.float32, "q, k and v must be float16 or bfloat16, not float32"
    assert beta.dim() == 3, "beta must be [B, T, HV]"
    assert keys <= MOST_KEYS, f"keys have at most {MOST_KEYS} elements, not {keys}"
    if heads % key_heads:
        raise ValueError(f"{heads} value heads cannot share {key_heads} key heads evenly")
    given = {"q": q, "v": v, "g": g, "beta": beta}
    wanted = {
        "q": k.shape,
        "v": (batch, tokens, heads, values),
        "g": (batch, tokens, heads),
        "beta": (batch, tokens, heads),
    }
    if cu_seqlens is not None and batch != 1:
        raise ValueError(f"with cu_seqlens the batch size must be 1, not {batch}")
    if initial_state is not None:
        sequences = batch if cu_seqlens is None else len(cu_seqlens) - 1
        given["initial_state"] = initial_state
        wanted["initial_state"] = (sequences, heads, values, keys)
    for name, tensor in given.items():
        if tensor.shape != wanted[name]:
            raise ValueError(f"{name} must be {list(wanted[name])}, not {list(tensor.shape)}")


def cut(
    k: torch.Tensor,
    cu_seqlens: torch.Tensor | None,
    chunk_indices: torch.Tensor | None,
    chunk_offsets: torch.Tensor | None,
) -> Sequences:
    """Complete what a call tells of its sequences; without `cu_seqlens` each row of k is one.

    Lengths that only the device has are read once where chunks are not given.
    """
    batch, tokens = k.shape[:2]
    if cu_seqlens is None:
        on_host = torch.arange(batch + 1, dtype=torch.int32, device="cpu") * tokens
        cu_seqlens = torch.arange(batch + 1, dtype=torch.int32, device=k.device) * tokens
    elif chunk_indices is None or chunk_offsets is None:
        on_host = cu_seqlens.cpu()
    else:
        return Sequences(
            cu_seqlens.contiguous(), chunk_indices.contiguous(), chunk_offsets.contiguous()
        )
    chunks = build_chunk_metadata(on_host, device=k.device)
    return Sequences(cu_seqlens.contiguous(), chunks.chunk_indices, chunks.chunk_offsets)
