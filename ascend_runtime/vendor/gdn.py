"""Gated delta nets by an operator of torch_npu's, for states in bfloat16.

What it takes is known from its schema and CANN's public documents, and awaits a run on an NPU.
"""

from __future__ import annotations

import sys
from typing import Any, Final, cast

import torch

from ascend_runtime.reference.gdn.gating import gating
from ascend_runtime.reference.gdn.recurrent import scale_of
from ascend_runtime.reference.norm import l2norm_fwd

#: The most heads, elements of a key or value, and tokens of a sequence that it takes.
_HEADS: Final = 256
_ELEMENTS: Final = 512
_TOKENS: Final = 8


def sigmoid_gating_update(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `ascend_runtime.reference.gdn.sigmoid_gating_update`.

    q, k and sigmoid(b) are rounded to bfloat16. A line below 0 is taken for line 0, the null block
    of vLLM's caches: it is read and written, and the outputs are undefined.
    """
    assert initial_state is not None and cu_seqlens is not None and ssm_state_indices is not None
    count, heads = len(cu_seqlens) - 1, v.shape[2]
    g, strength = gating(
        A_log, a.reshape(-1, heads), b.reshape(-1, heads), dt_bias, beta, threshold
    )
    if use_qk_l2norm_in_kernel:
        q, k = l2norm_fwd(q), l2norm_fwd(k)
    accepted = None
    if num_accepted_tokens is not None:
        accepted = num_accepted_tokens[:count].to(torch.int32)
    out = sys.modules["torch_npu"].npu_recurrent_gated_delta_rule(
        q[0].contiguous(),
        k[0].contiguous(),
        v[0].contiguous(),
        initial_state,
        beta=strength[0].to(torch.bfloat16),
        scale=scale_of(k, scale),
        actual_seq_lengths=cu_seqlens.diff().to(torch.int32),
        ssm_state_indices=ssm_state_indices[:count].flatten().clamp(min=0).to(torch.int32),
        num_accepted_tokens=accepted,
        g=g[0],
    )
    return cast("torch.Tensor", out)[None], initial_state


def sigmoid_gating_update_fits(
    A_log: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    dt_bias: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: float = 1.0,
    threshold: float = 20.0,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    inplace_final_state: bool = True,
    cu_seqlens: torch.Tensor | None = None,
    ssm_state_indices: torch.Tensor | None = None,
    num_accepted_tokens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    is_kda: bool = False,
) -> bool:
    """Whether all is bfloat16, the cache has no gaps, and every line of the table is a token's.

    The operator has a line for each token, vLLM a row of lines for each sequence: they are the
    same where each sequence has as many tokens as its row has lines.
    """
    tensors: tuple[Any, ...] = (q, k, v, initial_state)
    if any(x is None or x.dtype != torch.bfloat16 for x in tensors):
        return False
    if initial_state is None or not initial_state.is_contiguous():
        return False
    if is_kda or not inplace_final_state or cu_seqlens is None or ssm_state_indices is None:
        return False
    tokens, count = k.shape[1], len(cu_seqlens) - 1
    single = ssm_state_indices.dim() == 1
    each = 1 if single else ssm_state_indices.shape[1]
    return (
        k.shape[0] == 1
        and 0 < count <= len(ssm_state_indices)
        and tokens == count * each
        and each <= _TOKENS
        and not (single and num_accepted_tokens is not None)
        and max(k.shape[2], v.shape[2]) <= _HEADS
        and max(k.shape[3], v.shape[3]) <= _ELEMENTS
        and v.shape[2] % k.shape[2] == 0
        and initial_state.shape[1:] == (v.shape[2], v.shape[3], k.shape[3])
    )
