"""MiniMax-M2's norms and rotation: the kernels against their definitions, and in vLLM's layer."""

from __future__ import annotations

import importlib
from types import SimpleNamespace

import pytest
import torch
from interpreter import ascend_grids, launch_sizes

from ascend_runtime import dispatch
from ascend_runtime.kernels import minimax as kernels
from ascend_runtime.reference import minimax as reference

Q_EPS, K_EPS = 1e-6, 1e-2
CLOSE = {torch.float32: {}, torch.float16: {"rtol": 2e-3, "atol": 1e-3}}


def ranks(count: int) -> tuple:
    """The last arguments of both: `count` ranks of which all have the same."""
    return count, lambda squares: squares * count


def norm_call(rows: int, q: int, k: int, dtype=torch.float32, world: int = 1) -> tuple:
    """Queries and keys as views of packed projections."""
    qkv = torch.randn(rows, q + 2 * k).to(dtype)
    weights = torch.randn(q).to(dtype), torch.randn(k).to(dtype)
    return qkv[:, :q], qkv[:, q : q + k], *weights, Q_EPS, K_EPS, *ranks(world)


def rope_call(
    rows: int,
    q_heads: int,
    k_heads: int,
    head: int,
    rotary: int,
    dtype=torch.float32,
    world: int = 1,
    wide: int = 0,
) -> tuple:
    q, k = q_heads * head, k_heads * head
    return (
        torch.randn(rows, q + 2 * k + wide).to(dtype)[:, : q + 2 * k],
        torch.randn(q).to(dtype),
        torch.randn(k).to(dtype),
        torch.randint(0, 50, (rows,)),
        torch.randn(50, rotary).to(dtype),
        q,
        k,
        head,
        rotary,
        Q_EPS,
        K_EPS,
        *ranks(world),
    )


NORMS = [(0, 8, 4), (1, 1, 1), (5, 300, 33), (37, 256, 128), (3, 2100, 16)]


@pytest.mark.parametrize("sizes", NORMS, ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("world", [1, 3])
def test_norm_kernel_is_the_definition(cores, sizes, dtype, world):
    call = norm_call(*sizes, dtype, world)
    with ascend_grids():
        got = kernels.norm_qk(*call)
    assert all(one.is_contiguous() and one.dtype == dtype for one in got)
    torch.testing.assert_close(got, reference.norm_qk(*call), **CLOSE[dtype])


#: rows, heads of queries and keys, size of a head, how much of it is rotated
ROPES = [
    (0, 4, 2, 32, 16),
    (1, 6, 1, 128, 64),
    (5, 12, 2, 64, 32),
    (9, 3, 1, 96, 24),
    (3, 9, 3, 40, 40),
    (2, 2, 2, 512, 512),
]


@pytest.mark.parametrize("sizes", ROPES, ids=str)
@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("world", [1, 3])
def test_fused_kernel_is_the_definition(cores, sizes, dtype, world):
    call = rope_call(*sizes, dtype, world, wide=7)
    with ascend_grids():
        got = kernels.fused_qkv_norm_rope(*call)
    assert got[0].is_contiguous() and got[1].is_contiguous()
    torch.testing.assert_close(got, reference.fused_qkv_norm_rope(*call), **CLOSE[dtype])


def test_wider_table_and_narrower_positions(cores):
    """The table may be float32 for 16-bit projections, and positions 32 bits."""
    call = list(rope_call(5, 4, 2, 64, 32, torch.float16))
    call[3], call[4] = call[3].int(), torch.randn(50, 32)
    got = kernels.fused_qkv_norm_rope(*call)
    torch.testing.assert_close(got, reference.fused_qkv_norm_rope(*call), **CLOSE[torch.float16])


def test_positions_may_be_a_column():
    call = list(rope_call(5, 4, 2, 64, 32, torch.float32))
    wanted = kernels.fused_qkv_norm_rope(*call)
    call[3] = torch.stack([call[3], call[3] + 1], dim=1)[:, 0]
    torch.testing.assert_close(kernels.fused_qkv_norm_rope(*call), wanted, rtol=0, atol=0)


def test_one_all_reduce_of_two_numbers_a_token():
    seen = []
    *norm, _, _ = norm_call(5, 8, 4)
    *rope, _, _ = rope_call(5, 4, 2, 16, 16)
    reduce = lambda squares: seen.append((squares.shape, squares.dtype)) or squares  # noqa: E731
    kernels.norm_qk(*norm, 2, reduce)
    kernels.fused_qkv_norm_rope(*rope, 2, reduce)
    kernels.norm_qk(*norm, 1, reduce)
    kernels.fused_qkv_norm_rope(*rope, 1, reduce)
    assert seen == [((5, 2), torch.float32)] * 2


def test_many_tokens_are_few_programs(monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    rows = 70_000
    ones = torch.ones(32), torch.ones(16), Q_EPS, K_EPS, *ranks(1)
    qkv = torch.ones(1, 64).expand(rows, 64)
    table, positions = torch.ones(1, 16), torch.zeros(rows, dtype=torch.int64)
    with launch_sizes() as sizes:
        kernels.norm_qk(qkv[:, :32], qkv[:, 32:48], *ones)
        kernels.fused_qkv_norm_rope(
            qkv, *ones[:2], positions, table, 32, 16, 16, 16, Q_EPS, K_EPS, *ranks(1)
        )
    assert sizes == [48] * 4


def test_what_the_norm_kernel_takes():
    call = norm_call(3, 8, 4)
    assert kernels.norm_qk_fits(*call)
    assert not kernels.norm_qk_fits(torch.ones(8, 3).T, *call[1:])
    assert not kernels.norm_qk_fits(call[0].double(), *call[1:])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, torch.ones(64, 5).T),
        (0, torch.ones(5, 64, dtype=torch.float64)),
        (4, torch.ones(16, 50).T),
        (4, torch.ones(50, 20)[:, :16]),
        (7, 513),
        (8, 14),
    ],
)
def test_what_the_fused_kernel_takes(place, value):
    call = list(rope_call(5, 2, 1, 16, 16))
    assert kernels.fused_qkv_norm_rope_fits(*call)
    call[place] = value
    assert not kernels.fused_qkv_norm_rope_fits(*call)


def test_positions_must_be_one_a_token():
    call = list(rope_call(5, 2, 1, 16, 16))
    call[3] = torch.arange(6)
    with pytest.raises(ValueError, match=r"positions \(6,\) for 5 rows"):
        kernels.fused_qkv_norm_rope(*call)


@pytest.fixture
def layer(vllm_site, monkeypatch):
    """vLLM's own norms and rotation, in a stand-in for the rest of the layer."""
    norms = importlib.import_module("vllm.model_executor.layers.mamba.linear_attn")
    rope = importlib.import_module("vllm.model_executor.layers.rotary_embedding")
    config = importlib.import_module("vllm.config")
    state = importlib.import_module("vllm.distributed.parallel_state")
    cpu = config.VllmConfig(device_config=config.DeviceConfig("cpu"))
    group = SimpleNamespace(world_size=2, rank_in_group=0, all_reduce=lambda x: x * 2)
    monkeypatch.setattr(state, "_TP", group)
    with config.set_current_vllm_config(cpu):
        q_norm = norms.MiniMaxText01RMSNormTP(2 * 256, eps=Q_EPS)
        k_norm = norms.MiniMaxText01RMSNormTP(2 * 128, eps=K_EPS)
        rotary = rope.RotaryEmbedding(64, 32, 50, 10000.0, True, torch.float32)
        rotary._forward_method = rotary.forward_native
    for norm in (q_norm, k_norm):
        norm.weight.data.uniform_(0.5, 1.5)
    model = importlib.import_module("vllm.model_executor.models.minimax_m2")
    made = SimpleNamespace(
        qkv_proj=lambda hidden: (hidden, None),
        o_proj=lambda attended: (attended, None),
        attn=lambda q, k, v: torch.cat([q, k, v], -1),
        rotary_emb=rotary,
        q_norm=q_norm,
        k_norm=k_norm,
        q_size=256,
        kv_size=128,
        head_dim=64,
    )
    made.run = lambda positions, qkv: model.MiniMaxM2Attention.forward(made, positions, qkv)
    return made


POSITIONS = torch.tensor([7, 0, 30, 7, 2])


@pytest.mark.parametrize("compiled", [False, True])
def test_vllms_layer_goes_through_the_kernels(layer, compiled):
    """Compiled too, in one graph in which each kernel and the all-reduce is a node."""
    qkv = torch.randn(5, 512)
    with torch.no_grad():
        expected = layer.run(POSITIONS, qkv)
        targets: list[str] = []

        def backend(graph, inputs):
            targets.extend(str(node.target) for node in graph.graph.nodes)
            return graph.forward

        run = torch.compile(layer.run, fullgraph=True, backend=backend) if compiled else layer.run
        torch._dynamo.reset()
        with dispatch.override("kernel", "minimax"):
            got = run(POSITIONS, qkv)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    if compiled:
        ours = [name for name in targets if "minimax" in name]
        assert [name.split(".")[1] for name in ours] == [
            "minimax_mean_squares",
            "minimax_norm_rope",
        ]


def test_vllms_norm_goes_through_the_kernels(layer):
    norms = importlib.import_module("vllm.model_executor.layers.mamba.linear_attn")
    norm = norms.MiniMaxText01RMSNormTP.forward_qk
    q, k = torch.randn(5, 256), torch.randn(5, 128)
    with torch.no_grad():
        expected = norm(layer.q_norm, layer.k_norm, q, k)
        with dispatch.override("kernel", "minimax"), launch_sizes() as sizes:
            norm(layer.q_norm, layer.k_norm, q, k)
        with dispatch.override("kernel", "minimax"):
            got = norm(layer.q_norm, layer.k_norm, q, k)
    assert len(sizes) == 2
    torch.testing.assert_close(got, expected)
