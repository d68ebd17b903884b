"""The layer of a gated delta net: its projections split, its tokens counted, its states offered."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from ascend_runtime import gdn, sp
from ascend_runtime.gdn import layer

ON_NPU = pytest.mark.parametrize("npu", [False, True], ids=["traced", "operator"])


@pytest.fixture
def split(npu: bool, monkeypatch: pytest.MonkeyPatch) -> Callable:
    """The function as it is off NPUs, and with the operator that it is on them."""
    monkeypatch.setattr(layer, "is_npu", lambda x: npu and isinstance(x, torch.Tensor))
    return gdn.split_qkvzba


def columns(hk: int, hv: int, dk: int, dv: int) -> list[list[int]]:
    """Where the columns of mixed and z are in qkvz, and those of b and a in ba."""
    r = hv // hk
    q, k, v, z, b, a = ([] for _ in range(6))
    at = iter(range(hk * (2 * dk + 2 * r * dv)))
    gate = iter(range(2 * hv))
    for _ in range(hk):
        for part, width in ((q, dk), (k, dk), (v, r * dv), (z, r * dv)):
            part += [next(at) for _ in range(width)]
        for part in (b, a):
            part += [next(gate) for _ in range(r)]
    return [q + k + v, z, b, a]


def expected(qkvz: torch.Tensor, ba: torch.Tensor, *sizes: int) -> list[torch.Tensor]:
    mixed, z, b, a = columns(*sizes)
    return [qkvz[:, mixed], qkvz[:, z].reshape(-1, sizes[1], sizes[3]), ba[:, b], ba[:, a]]


def projections(rows: int, sizes: tuple[int, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    """Random bits; those of a not-a-number count too."""
    hk, hv, dk, dv = sizes
    generator = torch.Generator().manual_seed(rows)
    return [
        torch.randint(-(2**15), 2**15, (rows, width), generator=generator, dtype=torch.int16)
        .view(dtype)
        .contiguous()
        for width in (2 * (hk * dk + hv * dv), 2 * hv)
    ]


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@ON_NPU
def test_where_each_column_goes(split) -> None:
    qkvz, ba = torch.arange(16).view(1, 16), torch.arange(8).view(1, 8)
    mixed, z, b, a = split(qkvz, ba, 2, 4, 2, 1)
    assert mixed.tolist() == [[0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13]]
    assert z.tolist() == [[[6], [7], [14], [15]]]
    assert b.tolist() == [[0, 1, 4, 5]]
    assert a.tolist() == [[2, 3, 6, 7]]


GRID = [
    (rows, (hk, hk * ratio, dim, dim))
    for rows in (1, 2, 37)
    for hk in (1, 2, 4, 8, 16)
    for ratio in (1, 2)
    for dim in (64, 128, 256)
]
GRID += [(3567, (16, 32, 128, 128)), (5, (3, 9, 7, 5)), (5, (2, 8, 24, 40)), (70_000, (2, 2, 1, 1))]


@ON_NPU
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_every_bit_is_where_it_belongs(split, dtype: torch.dtype) -> None:
    for rows, sizes in GRID:
        given = projections(rows, sizes, dtype)
        found = split(*given, *sizes)
        for one, other in zip(found, expected(*given, *sizes), strict=True):
            assert one.dtype == dtype and one.shape == other.shape, (rows, sizes)
            assert torch.equal(bits(one), bits(other)), (rows, sizes)
            assert one.is_contiguous(), (rows, sizes)


@ON_NPU
def test_gates_may_have_another_dtype(split) -> None:
    given = torch.randn(3, 16, dtype=torch.bfloat16), torch.randn(3, 8)
    assert [x.dtype for x in split(*given, 2, 4, 2, 1)] == 2 * [torch.bfloat16] + 2 * [torch.float]


@ON_NPU
@pytest.mark.parametrize("hk", [1, 2])
def test_no_rows(split, hk: int) -> None:
    found = split(*projections(0, (hk, 4, 8, 2), torch.bfloat16), hk, 4, 8, 2)
    assert [tuple(x.shape) for x in found] == [(0, 16 * hk + 8), (0, 4, 2), (0, 4), (0, 4)]


@ON_NPU
@pytest.mark.parametrize("rows", [1, 3])
def test_results_are_not_views(split, rows: int) -> None:
    given = projections(rows, (1, 2, 8, 4), torch.float16)
    before = [bits(x).clone() for x in given]
    for result in split(*given, 1, 2, 8, 4):
        result.fill_(1)
    assert all(map(torch.equal, map(bits, given), before))


def test_operator_is_well_formed() -> None:
    operator = torch.ops.ascend_runtime.split_qkvzba.default
    for rows, hk in ((3, 2), (1, 1), (0, 2)):
        given = (torch.randn(rows, 8 * hk), torch.randn(rows, 4 * hk))
        torch.library.opcheck(operator, (*given, hk, 2 * hk, 2, 1))


@ON_NPU
def test_compiled_it_is_one_operator_on_npus_and_traced_elsewhere(split, npu: bool) -> None:
    torch._dynamo.reset()
    seen: list[torch.fx.Node] = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> Callable:
        seen.extend(node for node in graph.graph.nodes if node.op.startswith("call"))
        return graph.forward

    compiled = torch.compile(
        lambda x, y: gdn.split_qkvzba(x, y, 2, 4, 2, 1),
        backend=backend,
        fullgraph=True,
        dynamic=True,
    )
    for rows in (3, 5):
        given = projections(rows, (2, 4, 2, 1), torch.float16)
        found = map(bits, compiled(*given))
        assert all(map(torch.equal, found, map(bits, expected(*given, 2, 4, 2, 1))))
    ours = [node for node in seen if "ascend_runtime" in str(node.target)]
    assert len(ours) == npu
    assert any(node.target is torch.cat for node in seen) is not npu


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say how many tensor-parallel ranks there are, and what vLLM's configuration has."""

    def use(count: int, config: object = None) -> None:
        size = SimpleNamespace(get_tensor_model_parallel_world_size=lambda: count)
        current = SimpleNamespace(get_current_vllm_config_or_none=lambda: config)
        monkeypatch.setitem(sys.modules, "vllm.distributed", size)
        monkeypatch.setitem(sys.modules, "vllm.config", current)
        monkeypatch.delenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", raising=False)
        monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")

    return use


def more(**fields: object) -> SimpleNamespace:
    passes = SimpleNamespace(pass_config=SimpleNamespace(enable_sp=True))
    return SimpleNamespace(additional_config=fields, compilation_config=passes)


@pytest.mark.parametrize(
    ("value", "config", "on"),
    [
        (None, None, False),
        ("0", None, False),
        ("", None, False),
        ("1", None, True),
        ("True", None, True),
        (None, more(), False),
        (None, more(enable_flashcomm1=False), False),
        (None, more(enable_flashcomm1=True), True),
        (None, SimpleNamespace(additional_config="of another plugin"), False),
    ],
)
def test_what_switches_flash_comm_on(monkeypatch, ranks, value, config, on: bool) -> None:
    monkeypatch.setattr(sp, "_configured", False)
    ranks(4, config)
    if value is not None:
        monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", value)
    assert sp.enabled() is on
    ranks(1, config)
    if value is not None:
        monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", value)
    assert not sp.enabled()  # one rank has nothing to share
    ranks(4, config)
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1")
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    assert not sp.enabled()


@pytest.mark.parametrize(
    ("prefills", "decodes", "specs", "gathered"),
    [(2, 0, 0, 12), (1, 3, 0, 12), (0, 0, 2, 12), (1, 0, 2, 12), (0, 9, 0, 9)],
)
def test_rows_that_the_core_works_on(monkeypatch, ranks, prefills, decodes, specs, gathered):
    ranks(4)
    batch = SimpleNamespace(
        num_actual_tokens=9, num_prefills=prefills, num_decodes=decodes, num_spec_decodes=specs
    )
    x = torch.empty(12, 3)
    assert gdn.core_token_count(batch, x) == 9
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1")
    assert gdn.core_token_count(batch, x) == gathered
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cuda")
    assert gdn.core_token_count(batch, x) == 9


@pytest.mark.parametrize(("kind", "needed"), [("npu", False), ("cuda", True), ("cpu", True)])
def test_what_is_tuned(monkeypatch, kind: str, needed: bool) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", kind)
    assert gdn.needs_autotune_warmup() is needed


STATES = {0: (torch.zeros(1), torch.ones(1)), 1: (torch.full((1,), 2.0), torch.full((1,), 3.0))}


class Connector:
    def __init__(self) -> None:
        self.calls: list[tuple] = []
        self.has_metadata = True

    def has_connector_metadata(self) -> bool:
        return self.has_metadata

    def save_kv_layer(self, *call: object) -> None:
        self.calls.append(call)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A step of a model with two layers, on an NPU, with a connector; a test may change all."""
    context = SimpleNamespace(
        attn_metadata={"layers.0": "first", "layers.1": "second"},
        no_compile_layers={f"layers.{i}": SimpleNamespace(kv_cache=[STATES[i]]) for i in (0, 1)},
        virtual_engine=0,
    )
    step = SimpleNamespace(connector=Connector(), v1=True, context=context)
    transfer = SimpleNamespace(
        has_kv_transfer_group=lambda: step.connector is not None,
        is_v1_kv_transfer_group=lambda: step.v1,
        get_kv_transfer_group=lambda: step.connector,
    )
    forward = SimpleNamespace(get_forward_context=lambda: step.context)
    monkeypatch.setitem(sys.modules, "vllm.distributed.kv_transfer", transfer)
    monkeypatch.setitem(sys.modules, "vllm.forward_context", forward)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    return step


def test_connector_gets_name_states_and_metadata(step) -> None:
    gdn.after_core_attention("layers.1")
    gdn.after_core_attention("layers.0")
    assert step.connector.calls == [
        ("layers.1", STATES[1], "second"),
        ("layers.0", STATES[0], "first"),
    ]


def test_states_are_those_of_the_virtual_engine(step) -> None:
    step.context.no_compile_layers["layers.0"].kv_cache = [STATES[0], STATES[1]]
    step.context.virtual_engine = 1
    gdn.after_core_attention("layers.0")
    assert step.connector.calls == [("layers.0", STATES[1], "first")]


def test_connector_without_metadata_gets_nothing(step) -> None:
    step.connector.has_metadata = False
    gdn.after_core_attention("layers.0")
    assert step.connector.calls == []


def test_older_connector_gets_nothing(step) -> None:
    step.v1 = False
    gdn.after_core_attention("layers.0")
    assert step.connector.calls == []


def test_profile_run_offers_nothing(step) -> None:
    step.context.attn_metadata = None
    del step.context.no_compile_layers["layers.0"].kv_cache  # not bound yet
    gdn.after_core_attention("layers.0")
    assert step.connector.calls == []


@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_without_a_connector_or_an_npu_not_even_the_context_is_asked(
    step, monkeypatch, kind: str
) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", kind)
    connector = step.connector
    if kind == "npu":
        step.connector = None
    step.context = None
    gdn.after_core_attention("layers.0")
    assert connector.calls == []


def test_the_configuration_is_remembered_for_the_steps(monkeypatch, ranks) -> None:
    """vLLM shows it while it builds a model, and not in a forward pass."""
    monkeypatch.setattr(sp, "_configured", False)
    ranks(4, None)
    assert not sp.enabled()
    ranks(4, more(enable_flashcomm1=True))
    assert sp.enabled()
    ranks(4, None)
    assert sp.enabled()
    ranks(4, more())
    assert not sp.enabled()
    ranks(4, None)
    assert not sp.enabled()
