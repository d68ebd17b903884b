"""W17f and W18b: the norm and rotation of MiniMax-M2, fused where there is a kernel.

There is no Triton here: with the guards' question answered yes, the definition does it.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
from model_kit import CausalAttention, config_with, engine_config, llama, one_rank, randomized
from patched_kit import pristine
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor import custom_op
from vllm.model_executor.layers.mamba.linear_attn import MiniMaxText01RMSNormTP
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding
from vllm.model_executor.models.minimax_m2 import MiniMaxM2Attention

from ascend_runtime import minimax

FILES = (
    "vllm/model_executor/layers/mamba/linear_attn.py",
    "vllm/model_executor/models/minimax_m2.py",
)
Q_EPS, K_EPS = 1e-6, 1e-2
POSITIONS = torch.tensor([7, 0, 30, 7, 2])
HIDDEN = torch.randn(5, 32, generator=torch.Generator().manual_seed(1))
PLAIN = {"rope_type": "default", "rope_theta": 10000.0}


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


def attention(config: VllmConfig, rope: dict | None = None) -> MiniMaxM2Attention:
    """vLLM's layer, whose norms have an eps each, with attention that runs."""
    with set_current_vllm_config(config_with(config)), torch.no_grad():
        layer = MiniMaxM2Attention(
            hidden_size=32,
            num_heads=4,
            num_kv_heads=2,
            rotary_dim=16,
            rope_parameters=dict(rope or PLAIN),
            head_dim=32,
            rms_norm_eps=Q_EPS,
            max_position_embeddings=64,
            prefix="model.layers.0.self_attn",
        )
    layer.k_norm.variance_epsilon = K_EPS
    layer.attn = CausalAttention(layer.attn)
    return randomized(layer)


@pytest.fixture
def fused(monkeypatch) -> list[str]:
    """Answer that there are kernels, and that they fit; gives the operations done."""
    done: list[str] = []
    kernels = ModuleType("ascend_runtime.kernels.minimax")
    kernels.norm_qk_fits = kernels.fused_qkv_norm_rope_fits = lambda *arguments: True
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr("ascend_runtime.kernels.minimax", kernels, raising=False)
    monkeypatch.setattr(minimax, "_has_kernel", lambda name, device: True)
    for name in ("_norm", "_norm_rope"):
        function = getattr(minimax, name)
        monkeypatch.setattr(
            minimax, name, lambda *given, n=name, f=function: done.append(n) or f(*given)
        )
    return done


def run(layer: nn.Module, positions: torch.Tensor = POSITIONS) -> torch.Tensor:
    with torch.no_grad():
        return layer(positions, HIDDEN)


def test_without_kernels_vllms_own_lines_run_to_the_bit(base, config, monkeypatch) -> None:
    """On a CPU nothing is fused, in the layer and in the norm."""
    # The edited module has registered the operators.
    monkeypatch.setattr("vllm.utils.torch_utils.direct_register_custom_op", lambda **given: None)
    before, model = (pristine(base.root, path) for path in FILES)
    monkeypatch.setattr(model, "MiniMaxText01RMSNormTP", before.MiniMaxText01RMSNormTP)
    for name in ("_norm", "_norm_rope"):
        monkeypatch.setattr(minimax, name, None)
    layer = attention(config)
    with torch.no_grad():
        expected = model.MiniMaxM2Attention.forward(layer, POSITIONS, HIDDEN)
        q, k = torch.randn(5, 128), torch.randn(5, 64)
        norms = layer.q_norm, layer.k_norm, q, k
        theirs = before.MiniMaxText01RMSNormTP.forward_qk(*norms)
        ours = MiniMaxText01RMSNormTP.forward_qk(*norms)
    assert torch.equal(run(layer), expected)
    assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("positions", [POSITIONS, torch.arange(5)], ids=["other", "usual"])
def test_fused_layer_gives_the_same(config, fused, monkeypatch, positions) -> None:
    """With positions that are not the batch's, and two different eps."""
    layer = attention(config)
    got = run(layer, positions)
    assert fused == ["_norm_rope"]
    monkeypatch.setattr(minimax, "_has_kernel", lambda name, device: False)
    torch.testing.assert_close(got, run(layer, positions), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(got, run(layer, positions + 1 - positions.clamp(0, 1)), atol=1e-4)
    layer.k_norm.variance_epsilon = Q_EPS
    assert not torch.allclose(got, run(layer, positions), atol=1e-4)


def test_fused_norm_gives_the_same_bits(config, fused, monkeypatch) -> None:
    layer = attention(config)
    qkv = torch.randn(5, 256)
    given = layer.q_norm, layer.k_norm, qkv[:, :128], qkv[:, 128:192]
    with torch.no_grad():
        got = MiniMaxText01RMSNormTP.forward_qk(*given)
        assert fused == ["_norm"]
        monkeypatch.setattr(minimax, "_has_kernel", lambda name, device: False)
        expected = MiniMaxText01RMSNormTP.forward_qk(*given)
    assert all(torch.equal(*pair) for pair in zip(got, expected, strict=True))


ROPES = {
    "linear": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
    "multimodal": {**PLAIN, "mrope_section": [4, 2, 2]},
}


@pytest.mark.parametrize("kind", ROPES)
def test_other_rotations_are_left_alone(config, fused, kind) -> None:
    """The norm by itself is still the kernel's."""
    layer = attention(config, ROPES[kind])
    assert type(layer.rotary_emb) is not RotaryEmbedding
    run(layer)
    assert fused == ["_norm"]


def change(layer: nn.Module, what: str) -> None:
    if what == "interleaved pairs":
        layer.rotary_emb.is_neox_style = False
    elif what == "other heads":
        layer.rotary_emb.head_size = 16
    else:
        layer.rotary_emb.cos_sin_cache = torch.empty(64, 16, device="meta")


@pytest.mark.parametrize("what", ["interleaved pairs", "other heads", "table elsewhere"])
def test_layers_that_are_not_fused(config, fused, what) -> None:
    layer = attention(config)
    layer.rotary_emb = copy.deepcopy(layer.rotary_emb)  # layers share it
    qkv = torch.ones(5, 256)
    assert minimax.use_fused_qkv(layer, qkv, POSITIONS)
    change(layer, what)
    assert not minimax.use_fused_qkv(layer, qkv, POSITIONS)


def test_arguments_that_are_not_fused(config, fused, monkeypatch) -> None:
    layer, qkv = attention(config), torch.ones(5, 256)
    assert not minimax.use_fused_qkv(layer, qkv, POSITIONS.expand(3, 5))
    assert not minimax.use_fused_qkv(layer, qkv[None], POSITIONS)
    kernels = sys.modules["ascend_runtime.kernels.minimax"]
    monkeypatch.setattr(kernels, "fused_qkv_norm_rope_fits", lambda *arguments: False)
    monkeypatch.setattr(kernels, "norm_qk_fits", lambda *arguments: False)
    assert not minimax.use_fused_qkv(layer, qkv, POSITIONS)
    assert not minimax.has_fused_qk(layer.q_norm, layer.k_norm, qkv, qkv)


def test_what_the_platform_put_in_the_place_of_the_rotation_is_fused(
    config, fused, monkeypatch
) -> None:
    layer = attention(config)
    layer.rotary_emb = copy.deepcopy(layer.rotary_emb)
    layer.rotary_emb.__class__ = type("PlatformRotary", (RotaryEmbedding,), {})
    assert not minimax.use_fused_qkv(layer, torch.ones(5, 256), POSITIONS)
    monkeypatch.setitem(custom_op.op_registry_oot, "RotaryEmbedding", type(layer.rotary_emb))
    assert minimax.use_fused_qkv(layer, torch.ones(5, 256), POSITIONS)


@pytest.mark.parametrize("with_kernel", [False, True])
def test_compiled_layer_is_one_graph(config, fused, monkeypatch, with_kernel) -> None:
    monkeypatch.setattr(minimax, "_has_kernel", _yes if with_kernel else _no)
    monkeypatch.setattr(minimax, "_norm_rope", minimax.op("minimax.fused_qkv_norm_rope")(REFERENCE))
    layer = attention(config)
    expected = run(layer)
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(layer.forward, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(POSITIONS, HIDDEN), expected)


REFERENCE = minimax.reference.fused_qkv_norm_rope


@torch.compiler.assume_constant_result
def _yes(name: str, device: str) -> bool:
    return True


@torch.compiler.assume_constant_result
def _no(name: str, device: str) -> bool:
    return False
