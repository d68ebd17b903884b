"""W18b on two ranks, over gloo: each has half the heads, and they reduce once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import gloo_ranks
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from vllm.distributed import parallel_state
from vllm.model_executor.layers.mamba.linear_attn import MiniMaxText01RMSNormTP

from ascend_runtime import minimax

EPS = 1e-6, 1e-2


class TwoRanks:
    """The tensor-parallel group of vLLM."""

    world_size = 2

    def __init__(self) -> None:
        self.reduced: list[tuple[int, ...]] = []

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        self.reduced.append(tuple(tensor.shape))
        dist.all_reduce(tensor)
        return tensor


@pytest.mark.parametrize("fused", [False, True])
def test_two_ranks_norm_like_one(monkeypatch, tmp_path: Path, fused: bool) -> None:
    """vLLM's own lines, and what takes their place."""
    kernels = ModuleType("ascend_runtime.kernels.minimax")
    kernels.norm_qk_fits = lambda *arguments: True
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    monkeypatch.setattr("ascend_runtime.kernels.minimax", kernels, raising=False)
    monkeypatch.setattr(minimax, "_has_kernel", lambda name, device: fused)
    if not fused:
        monkeypatch.setattr(minimax, "_norm", None)
    generator = torch.Generator().manual_seed(2)
    qk = [torch.randn(5, size, generator=generator) for size in (128, 64)]
    weights = [torch.rand(size, generator=generator) + 0.5 for size in (128, 64)]

    def job(rank: int) -> tuple:
        group = parallel_state._TP = TwoRanks()
        norms = [
            SimpleNamespace(weight=weight.chunk(2)[rank], variance_epsilon=eps, tp_world=2)
            for weight, eps in zip(weights, EPS, strict=True)
        ]
        mine = (x.chunk(2, -1)[rank] for x in qk)
        found = MiniMaxText01RMSNormTP.forward_qk(*norms, *mine)
        return [one.tolist() for one in found], group.reduced

    answers = gloo_ranks.run(job, 2, tmp_path)
    assert [reduced for _, reduced in answers] == [[(5, 2)]] * 2
    for number, (x, weight, eps) in enumerate(zip(qk, weights, EPS, strict=True)):
        together = torch.cat([torch.tensor(found[number]) for found, _ in answers], -1)
        expected = F.rms_norm(x, x.shape[1:], weight, eps)
        torch.testing.assert_close(together, expected, atol=1e-5, rtol=0)
