"""MiniMax-M2: float32, fp8 in blocks, and more ranks than KV heads."""

from __future__ import annotations

import pytest
import tiny_minimax
import torch
from e2e_kit import DEVICES, TEXTS, Ground, Run, deficits, prompts

from rewriter.base import Base

COUNT = 16
KV_HEADS = 2


def asked(e2e: Ground, fp8: bool = False, **options: object) -> Run:
    """In fp8 all experts work on each token, so that rounding routes none elsewhere."""
    folder = e2e.work / ("minimax_fp8" if fp8 else "minimax")
    if not folder.exists():
        tiny_minimax.save(folder, KV_HEADS, per_token=4 if fp8 else 2, fp8=fp8)
    return Run(
        folder,
        prompts(folder, TEXTS[:3]),
        {"trust_remote_code": True, "dtype": "bfloat16" if fp8 else "float32", **options},
        {"max_tokens": COUNT},
    )


def wanted(run: Run) -> list[list[int]]:
    model = tiny_minimax.load(run.folder)
    return [model.greedy(list(prompt), COUNT) for prompt in run.prompts]


@pytest.mark.parametrize("device", ["npu", pytest.param("cpu", marks=pytest.mark.slow)])
def test_float32(e2e: Ground, device: str) -> None:
    run = asked(e2e)
    (result,) = e2e.generate(run, device=device)
    assert result["tokens"] == wanted(run)
    kind = "kernel" if device == "npu" else "reference"
    assert result["chosen"]["minimax.fused_qkv_norm_rope"] == kind


@pytest.mark.slow
def test_without_the_fused_norm(e2e: Ground) -> None:
    run = asked(e2e)
    (result,) = e2e.generate(run, device="npu", ASCEND_RUNTIME_IMPL="minimax=upstream")
    assert result["chosen"]["minimax.fused_qkv_norm_rope"] == "upstream"
    assert result["tokens"] == wanted(run)


def test_fp8_blocks_become_bfloat16(e2e: Ground) -> None:
    """On NPUs; logits are about 1 large, and bfloat16 has 8 bits."""
    run = asked(e2e, fp8=True)
    (result,) = e2e.generate(run, device="npu")
    lacks = torch.cat(deficits(tiny_minimax.load(run.folder), run.prompts, result["tokens"]))
    assert len(lacks) == COUNT * len(run.prompts)
    assert lacks.max() < 0.05
    assert (lacks == 0).float().mean() > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_more_ranks_than_kv_heads(e2e: Ground, device: str) -> None:
    run = asked(e2e, tensor_parallel_size=2 * KV_HEADS)
    (result,) = e2e.generate(run, device=device)
    assert result["tokens"] == wanted(run)


@pytest.mark.slow
def test_unedited_vllm_has_no_keys_for_all_ranks(e2e: Ground, base: Base) -> None:
    """It cuts the norm of the keys into four, the two heads of keys into two: 16 against 32."""
    run = asked(e2e, tensor_parallel_size=2 * KV_HEADS)
    with pytest.raises(AssertionError, match=r"tensor a \(32\) must match .* tensor b \(16\)"):
        e2e.unedited(base.root).generate(run)
