"""The chunked gated delta rule by Triton kernels."""

from __future__ import annotations

import torch

from ascend_runtime.kernels.gdn.chunk_output import outputs
from ascend_runtime.kernels.gdn.chunk_prepare import gates, inverses, w_and_u
from ascend_runtime.kernels.gdn.chunk_state import states
from ascend_runtime.kernels.norm import l2norm_fwd
from ascend_runtime.reference.gdn.chunk_inputs import Sequences, check, cut


@torch.compiler.disable
def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    chunk_indices: torch.Tensor | None = None,
    chunk_offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """See `ascend_runtime.reference.gdn.chunk_gated_delta_rule`.

    The state is float32; what one kernel hands to another is of the dtype of q.
    """
    check(q, k, v, g, beta, initial_state, cu_seqlens)
    sequences = cut(k, cu_seqlens, chunk_indices, chunk_offsets)
    if use_qk_l2norm_in_kernel:
        q, k = l2norm_fwd(q), l2norm_fwd(k)
    shape = v.shape
    q, k, v, g, beta = (x.contiguous().flatten(0, 1) for x in (q, k, v, g, beta))
    initial = None if initial_state is None else initial_state.contiguous()
    scale = k.shape[-1] ** -0.5 if scale is None else scale
    o, final = rule(q, k, v, g, beta, scale, initial, output_final_state, sequences)
    return o.view(shape), final


def rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    initial_state: torch.Tensor | None,
    output_final_state: bool,
    sequences: Sequences,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Launch the kernels on contiguous tensors with all tokens in one dimension, of any float."""
    decay, strength = gates(g, beta, sequences)
    inverse = inverses(k, decay, strength, sequences)
    w, u = w_and_u(k, v, decay, strength, inverse, sequences)
    before, news, final = states(k, w, u, decay, initial_state, output_final_state, sequences)
    return outputs(q, k, news, before, decay, scale, sequences), final
