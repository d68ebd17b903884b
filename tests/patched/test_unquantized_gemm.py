"""W11: the GEMM of unquantised layers is an operator of its own on out-of-tree platforms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from vllm.model_executor.layers import utils
from vllm.model_executor.layers.utils import dispatch_unquantized_gemm, oot_unquantized_gemm

GEMM = torch.ops.vllm.unquantized_gemm
SHAPES = [((3, 5, 8), (3, 5, 4)), ((8,), (4,)), ((2, 8), (2, 4)), ((0, 8), (0, 4))]


@pytest.mark.parametrize(("shape", "result"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_result_is_that_of_linear(shape, result, with_bias, dtype) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(4, 8, dtype=dtype)
    bias = torch.randn(4, dtype=dtype) if with_bias else None
    out = oot_unquantized_gemm(None, x, weight, bias)
    assert out.shape == result and out.dtype == dtype
    assert torch.equal(out, F.linear(x, weight, bias))


@pytest.mark.parametrize(("shape", "result"), SHAPES)
def test_fake_keeps_all_leading_dimensions(shape, result) -> None:
    with FakeTensorMode():
        out = GEMM(torch.empty(shape, dtype=torch.float16), torch.empty(4, 8), None)
        assert out.shape == result and out.dtype == torch.float16


def test_operator_obeys_the_rules_of_operators() -> None:
    arguments = (torch.randn(3, 5, 8), torch.randn(4, 8), torch.randn(4))
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(GEMM.default, arguments, test_utils=checks)
    torch.library.opcheck(GEMM.default, (*arguments[:2], None), test_utils=checks)


def test_graph_has_one_node_for_it() -> None:
    """What fusion passes look for, with the arguments in this order."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return oot_unquantized_gemm(None, x, weight, None)

    x, weight = torch.randn(2, 3, 8), torch.randn(4, 8)
    assert torch.equal(layer(x, weight), F.linear(x, weight))
    (node,) = (n for n in graphs[0].graph.nodes if n.op == "call_function")
    assert node.target in (GEMM, GEMM.default)
    assert len(node.args) == 3 and node.args[2] is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("is_rocm", "rocm_unquantized_gemm"),
        ("is_cpu", "cpu_unquantized_gemm"),
        ("is_out_of_tree", "oot_unquantized_gemm"),
        ("is_cuda", "default_unquantized_gemm"),
        ("is_xpu", "default_unquantized_gemm"),
        ("is_tpu", "default_unquantized_gemm"),
    ],
)
def test_platforms(platform, kind: str, name: str) -> None:
    platform(utils, **{kind: lambda: True})
    assert dispatch_unquantized_gemm() is getattr(utils, name)


def test_every_layer_asks_the_dispatcher(platform) -> None:
    from vllm.model_executor.layers import linear, vocab_parallel_embedding

    platform(utils, is_out_of_tree=lambda: True)
    for module in (linear, vocab_parallel_embedding):
        assert module.dispatch_unquantized_gemm is dispatch_unquantized_gemm
    layer = torch.nn.Linear(8, 4, bias=False)
    out = linear.UnquantizedLinearMethod().apply(layer, torch.ones(2, 3, 8))
    assert torch.equal(out, layer(torch.ones(2, 3, 8)))
