"""W19c: Qwen3-Next's attention with what it does to its projection in one operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import gdn_kit
import pytest
import torch
from model_kit import CausalAttention, config_with, engine_config, llama, one_rank, randomized
from patched_kit import npu_scene
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers import rotary_embedding as ropes
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm
from vllm.model_executor.models import qwen3_next

from ascend_runtime import dispatch, qwen

HIDDEN, HEADS, KV_HEADS, DIM, POSITIONS = 32, 4, 2, 16, 40
PLAIN = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
SECTIONS = PLAIN | {"mrope_section": [2, 1, 1]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": POSITIONS}
ROPES = {
    "plain": PLAIN,
    "yarn": PLAIN | YARN,
    "sections": SECTIONS,
    "interleaved": SECTIONS | {"mrope_interleaved": True},
    "sections-yarn": SECTIONS | YARN,
}
OPERATION = "qwen.split_qkv_norm_rope"


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


@pytest.fixture(scope="module")
def upstream(base) -> type:
    return gdn_kit.upstream(base.root).Qwen3NextAttention


Build = Callable[..., nn.Module]


@pytest.fixture
def build(config) -> Build:
    """vLLM's layer, tiny, with the same random weights for each class."""

    def build(
        cls: type, rope: str = "plain", gate: bool = True, dtype: torch.dtype = torch.float32
    ) -> nn.Module:
        fields = SimpleNamespace(
            hidden_size=HIDDEN,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=DIM,
            max_position_embeddings=POSITIONS,
            rope_parameters=ROPES[rope],
            rms_norm_eps=1e-5,
            attn_output_gate=gate,
        )
        before = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            with set_current_vllm_config(config_with(config)):
                layer = cls(fields, prefix="model.layers.0.self_attn")
        finally:
            torch.set_default_dtype(before)
        layer.attn = CausalAttention(layer.attn)
        return randomized(layer)

    return build


def tokens(rope: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (3, 7) if "sections" in rope or rope == "interleaved" else (7,)
    return torch.randint(0, POSITIONS, shape, generator=generator)


def run(layer: nn.Module, positions: torch.Tensor, forward: Callable | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    dtype = layer.o_proj.weight.dtype
    hidden = torch.randn(positions.size(-1), HIDDEN, generator=generator).to(dtype)
    output = torch.full_like(hidden, torch.nan)
    (forward or layer.forward)(positions, output, hidden)
    return output


@pytest.fixture
def calls(monkeypatch) -> list[tuple]:
    """The calls of the operation."""
    seen: list[tuple] = []
    real = qwen._split_op
    monkeypatch.setattr(qwen, "_split_op", lambda *args: (seen.append(args), real(*args))[1])
    return seen


EACH = pytest.mark.parametrize("gate", [True, False], ids=["gate", "no gate"])
EACH_ROPE = pytest.mark.parametrize("rope", ROPES)


@EACH
@EACH_ROPE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_off_it_has_the_bits_of_upstream(build, upstream, calls, rope, gate, dtype) -> None:
    wanted = run(build(upstream, rope, gate, dtype), tokens(rope))
    found = run(build(qwen3_next.Qwen3NextAttention, rope, gate, dtype), tokens(rope))
    assert torch.equal(found, wanted) and not calls


@EACH
@EACH_ROPE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_forced_it_has_the_numbers_of_upstream(build, upstream, calls, rope, gate, dtype) -> None:
    """And the bits, where the operators are those of plain torch, as they are on this platform."""
    for positions in (tokens(rope), tokens("plain")):
        wanted = run(build(upstream, rope, gate, dtype), positions)
        with dispatch.override("reference", OPERATION):
            found = run(build(qwen3_next.Qwen3NextAttention, rope, gate, dtype), positions)
        assert torch.equal(found, wanted)
    assert len(calls) == 2


def test_rotation_and_norm_matter(build) -> None:
    """Otherwise the tests above would prove little."""
    layer = build(qwen3_next.Qwen3NextAttention, "interleaved")
    with dispatch.override("reference", OPERATION):
        one = run(layer, tokens("interleaved"))
        assert not torch.allclose(one, run(layer, tokens("interleaved").flip(0)), atol=1e-3)
        layer.q_norm.weight.data.mul_(-1)
        assert not torch.allclose(one, run(layer, tokens("interleaved")), atol=1e-3)


def test_same_layer_has_been_built_by_qwen3_5() -> None:
    assert gdn_kit.qwen3_5().Qwen3NextAttention is qwen3_next.Qwen3NextAttention


@EACH
@pytest.mark.parametrize("rope", ["plain", "interleaved"])
@pytest.mark.parametrize("forced", [False, True])
def test_torch_compile_takes_the_choice_for_a_constant(build, upstream, rope, gate, forced) -> None:
    """One graph for all token counts, which vLLM marks as dynamic."""
    torch._dynamo.reset()
    graphs: list[list[str]] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    layer = build(qwen3_next.Qwen3NextAttention, rope, gate)
    compiled = torch.compile(layer.forward, backend=backend, fullgraph=True, dynamic=False)

    def forward(positions: torch.Tensor, *rows: torch.Tensor) -> None:
        torch._dynamo.mark_dynamic(positions, positions.dim() - 1)
        for one in rows:
            torch._dynamo.mark_dynamic(one, 0)
        compiled(positions, *rows)

    wanted = build(upstream, rope, gate)
    with dispatch.override("reference" if forced else "upstream", OPERATION):
        for count in (7, 5):
            positions = tokens(rope)[..., :count].clone()
            torch.testing.assert_close(run(layer, positions, forward), run(wanted, positions))
    (nodes,) = graphs
    assert nodes.count("ascend_runtime.split_qkv_norm_rope.default") == forced
    assert any("rsqrt" in node for node in nodes) is not forced


def chosen(layer: nn.Module, positions: torch.Tensor) -> bool:
    qkv = torch.zeros(positions.size(-1), (HEADS * 2 + KV_HEADS * 2) * DIM)
    with dispatch.override("reference", OPERATION):
        return bool(qwen.fuses_qkv(layer, positions, qkv))


def other_rope(cls: type, **fields: object) -> nn.Module:
    """A rotary embedding of another class, with all that the guard asks for."""
    made = cls.__new__(cls)
    nn.Module.__init__(made)
    defaults = {
        "head_size": DIM,
        "rotary_dim": DIM // 2,
        "is_neox_style": True,
        "cos_sin_cache": torch.ones(POSITIONS, DIM // 2),
    }
    for name, value in {**defaults, **fields}.items():
        setattr(made, name, value)
    return made


REGISTERED = {name: getattr(ropes, name) for name in qwen._ROPES}


@pytest.mark.parametrize("name", sorted(n for n in vars(ropes) if n.endswith("RotaryEmbedding")))
def test_which_rotary_embeddings_are_a_table(build, name) -> None:
    layer = build(qwen3_next.Qwen3NextAttention)
    layer.rotary_emb = other_rope(getattr(ropes, name))
    assert chosen(layer, tokens("plain")) == (name in REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_what_a_platform_registers_stands_for_vllms(build, monkeypatch, name) -> None:
    layer = build(qwen3_next.Qwen3NextAttention)
    of_platform = type(f"Ascend{name}", (REGISTERED[name],), {})
    layer.rotary_emb = other_rope(of_platform)
    assert not chosen(layer, tokens("plain"))
    monkeypatch.setitem(op_registry_oot, name, of_platform)
    assert chosen(layer, tokens("plain"))
    layer.q_norm.__class__ = type("AscendNorm", (GemmaRMSNorm,), {})
    assert not chosen(layer, tokens("plain"))
    monkeypatch.setitem(op_registry_oot, "GemmaRMSNorm", type(layer.q_norm))
    assert chosen(layer, tokens("plain"))


def _set(path: str, value: object) -> Callable[[nn.Module], None]:
    *owners, name = path.split(".")

    def change(layer: nn.Module) -> None:
        for owner in owners:
            layer = getattr(layer, owner)
        setattr(layer, name, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("rotary_emb.is_neox_style", False),
        _set("rotary_emb.head_size", DIM * 2),
        _set("rotary_emb.rotary_dim", DIM),
        _set("rotary_emb.cos_sin_cache", torch.ones(POSITIONS, DIM // 2, device="meta")),
        _set("q_norm.variance_epsilon", 1e-3),
        _set("k_norm.__class__", RMSNorm),
    ],
    ids=["gptj", "head size", "rotary size", "device", "epsilon", "norm"],
)
def test_layers_that_are_left_alone(build, change) -> None:
    layer = build(qwen3_next.Qwen3NextAttention)
    layer.rotary_emb = other_rope(ropes.RotaryEmbedding)
    assert chosen(layer, tokens("plain"))
    change(layer)
    assert not chosen(layer, tokens("plain"))


def test_positions_of_three_axes_need_sections(build) -> None:
    layer = build(qwen3_next.Qwen3NextAttention)
    assert not chosen(layer, tokens("sections"))
    layer.rotary_emb = other_rope(ropes.MRotaryEmbedding, mrope_section=None)
    assert chosen(layer, tokens("plain")) and not chosen(layer, tokens("sections"))
    layer.rotary_emb.mrope_section = (2, 1, 1)
    assert chosen(layer, tokens("sections"))


@pytest.mark.parametrize(
    ("device", "choice", "wanted"),
    [
        ("cpu", {"none": "upstream", "cpu": "reference"}, False),
        ("npu", {"none": "upstream", "npu": "kernel"}, True),
        ("npu", {"none": "upstream", "npu": "reference"}, False),
        ("npu", {"none": "upstream", "npu": "upstream"}, False),
        ("npu", {"none": "reference", "npu": "reference"}, True),
        ("cpu", {"none": "kernel", "cpu": "kernel"}, True),
        ("cuda", {"none": "kernel", "cuda": "kernel"}, False),
    ],
)
def test_when_it_is_wanted(monkeypatch, device, choice, wanted) -> None:
    """On an NPU with the kernel; plain torch would be slower than the platform's operators."""
    monkeypatch.setattr(dispatch, "choice", lambda name, where: choice[where])
    assert qwen._wanted(device) == wanted


@pytest.mark.parametrize(("scene", "fuses"), [("kernel", True), ("no_kernel", False)])
def test_on_a_device_named_npu(scene, fuses) -> None:
    """The kernel for heads that it takes, in Triton's interpreter; off where there is none."""
    answer = npu_scene("npu_qwen_scenes.py", scene)
    assert answer.pop("off") < 1e-5
    assert answer == {
        "fuses": fuses,
        "fuses wide heads": False,
        "fuses when told not to": False,
        "devices": ["npu"],
    }
