"""Which quantization MiniMax-M2 ends with, and what becomes of HCCL_OP_EXPANSION_MODE."""

from __future__ import annotations

import logging

import pytest

from ascend_runtime import minimax

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
AWQ = {"quant_method": "awq"}
VARIABLE = "HCCL_OP_EXPANSION_MODE"


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")


@pytest.mark.parametrize(
    ("method", "model_type", "checkpoint", "result"),
    [
        ("fp8", "minimax_m2", FP8, None),
        ("fp8", "minimax_m2", None, "fp8"),
        ("fp8", "minimax_m2", {}, "fp8"),
        ("fp8", "minimax_m2", AWQ, "fp8"),
        ("awq", "minimax_m2", AWQ, "awq"),
        ("ascend", "minimax_m2", FP8, "ascend"),
        (None, "minimax_m2", FP8, None),
        (None, "minimax_m2", None, None),
        ("fp8", "deepseek_v3", FP8, "fp8"),
        ("fp8", "minimax_text_01", FP8, "fp8"),
        ("fp8", "minimax", FP8, "fp8"),
    ],
)
def test_effective_quantization(npu, method, model_type, checkpoint, result) -> None:
    before = dict(checkpoint or {})
    assert minimax.effective_quantization(method, model_type, checkpoint) == result
    assert (checkpoint or {}) == before


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_quantization_stays_off_npu(monkeypatch, device: str) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", device)
    assert minimax.effective_quantization("fp8", "minimax_m2", FP8) == "fp8"


def test_one_warning_in_the_log_of_vllm(npu, caplog) -> None:
    with caplog.at_level(logging.INFO):
        minimax.effective_quantization("fp8", "minimax_m2", FP8)
        minimax.effective_quantization("fp8", "deepseek_v3", FP8)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.name == "vllm.ascend_runtime.minimax"
    assert "used as bf16" in record.message


@pytest.mark.parametrize(
    ("value", "model_type", "eager", "result", "after"),
    [
        (None, "minimax_m2", False, "set", "AIV"),
        ("", "minimax_m2", False, "set", "AIV"),
        ("AIV", "minimax_m2", False, "kept", "AIV"),
        ("AI_CPU", "minimax_m2", False, "warned", "AI_CPU"),
        (None, "minimax_m2", True, "skipped", None),
        ("AIV", "minimax_m2", True, "skipped", "AIV"),
        ("AI_CPU", "minimax_m2", True, "skipped", "AI_CPU"),
        (None, "qwen3_moe", False, "skipped", None),
        ("AI_CPU", "qwen3_moe", False, "skipped", "AI_CPU"),
        (None, "qwen3_moe", True, "skipped", None),
    ],
)
def test_ensure_hccl_expansion(npu, caplog, value, model_type, eager, result, after) -> None:
    env = {} if value is None else {VARIABLE: value}
    with caplog.at_level(logging.INFO):
        assert minimax.ensure_hccl_expansion(model_type, eager, env) == result
    assert env.get(VARIABLE) == after
    levels = {"set": ["INFO"], "warned": ["WARNING"]}
    assert [record.levelname for record in caplog.records] == levels.get(result, [])


@pytest.mark.parametrize("value", [None, "AIV", "AI_CPU"])
def test_environment_is_untouched_off_npu(monkeypatch, value) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "cpu")
    env = {} if value is None else {VARIABLE: value}
    before = dict(env)
    assert minimax.ensure_hccl_expansion("minimax_m2", False, env) == "skipped"
    assert env == before


def test_the_environment_of_the_process_by_default(npu, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert minimax.ensure_hccl_expansion("minimax_m2", False) == "set"
    assert minimax.ensure_hccl_expansion("minimax_m2", False) == "kept"
