"""The norms of MiniMax-M2, by kernels where there are any."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from facts import fact


@fact
def minimax_fused_norm() -> bool:
    from vllm.model_executor.layers.mamba.linear_attn import MiniMaxText01RMSNormTP
    from vllm.model_executor.models.minimax_m2 import MiniMaxM2Attention

    import ascend_runtime.minimax as helpers

    asked = []
    helpers.has_fused_qk = lambda *given: True
    helpers.norm_qk = lambda *given: asked.append(given)
    MiniMaxText01RMSNormTP.forward_qk("q norm", "k norm", "q", "k")
    helpers.use_fused_qkv = lambda layer, qkv, positions: True
    helpers.fused_qkv_norm_rope = lambda layer, qkv, positions: (qkv, positions, "v")
    layer = SimpleNamespace(
        qkv_proj=lambda hidden: (f"{hidden}!", None),
        attn=lambda *qkv: qkv,
        o_proj=lambda out: (out, None),
    )
    out = MiniMaxM2Attention.forward(layer, torch.ones(1), "hidden")
    return asked == [("q norm", "k norm", "q", "k")] and out[0] == "hidden!" and out[2] == "v"
