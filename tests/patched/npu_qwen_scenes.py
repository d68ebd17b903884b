"""Qwen3-Next's attention on the device of type "npu" that lies in host memory.

`python npu_qwen_scenes.py SCENE` prints one JSON object for test_fused_qkv.py.
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace

import torch
from npu_scenes import use_npu

HEADS, KV_HEADS, DIM, TOKENS = 4, 2, 16, 5


def _layer(device: torch.device) -> SimpleNamespace:
    """What is asked of vLLM's layer, with a norm and a rotary embedding of vLLM's classes."""
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm
    from vllm.model_executor.layers.rotary_embedding import MRotaryEmbedding

    norm, rope = (cls.__new__(cls) for cls in (GemmaRMSNorm, MRotaryEmbedding))
    for module in (norm, rope):
        torch.nn.Module.__init__(module)
    norm.weight = torch.nn.Parameter(torch.randn(DIM).to(device), requires_grad=False)
    norm.variance_epsilon = 1e-5
    rope.cos_sin_cache = torch.rand(20, 8).to(device)
    rope.head_size, rope.rotary_dim, rope.is_neox_style = DIM, 8, True
    rope.mrope_section, rope.mrope_interleaved = [2, 1, 1], True
    return SimpleNamespace(
        rotary_emb=rope,
        q_norm=norm,
        k_norm=norm,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        attn_output_gate=True,
    )


def _run() -> dict[str, object]:
    """Ask, and run the operation on the device and, as its reference, on the host."""
    device = use_npu()
    torch.manual_seed(0)
    from ascend_runtime import dispatch, qwen

    layer = _layer(device)
    qkv = torch.randn(TOKENS, (2 * HEADS + 2 * KV_HEADS) * DIM)
    positions = torch.randint(0, 20, (3, TOKENS))
    given = layer, positions.to(device), qkv.to(device)
    answer = {"fuses": qwen.fuses_qkv(*given)}
    layer.head_dim = layer.rotary_emb.head_size = 2048
    answer["fuses wide heads"] = qwen.fuses_qkv(*given)
    layer.head_dim = layer.rotary_emb.head_size = DIM
    with dispatch.override("upstream", "qwen"):
        answer["fuses when told not to"] = qwen.fuses_qkv(*given)
    made = qwen.split_qkv_norm_rope(*given)
    wanted = qwen.split_qkv_norm_rope(_layer_on_host(layer), positions, qkv)
    pairs = list(zip(made, wanted, strict=True))
    answer["off"] = max((one.cpu() - other).abs().max().item() for one, other in pairs)
    answer["devices"] = sorted({one.device.type for one in made})
    return answer


def _layer_on_host(layer: SimpleNamespace) -> SimpleNamespace:
    layer.q_norm.cpu()
    layer.rotary_emb.cos_sin_cache = layer.rotary_emb.cos_sin_cache.cpu()
    return layer


def kernel() -> dict[str, object]:
    os.environ["TRITON_INTERPRET"] = "1"
    os.environ["ASCEND_RUNTIME_SOC"] = "A2"
    return _run()


def no_kernel() -> dict[str, object]:
    os.environ["ASCEND_RUNTIME_SOC"] = "310P"
    return _run()


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
