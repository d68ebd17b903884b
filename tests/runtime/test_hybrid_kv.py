"""Blocks of hybrid models in the contiguous layout: the planner, and what it is asked for."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from ascend_runtime import hybrid_kv
from ascend_runtime.hybrid_kv import HybridPlan, plan_contiguous

CONV, RECURRENT = 3 * 8192 * 2, 16 * 128 * 128 * 4


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch):
    def use(soc: str | None) -> None:
        monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu" if soc else "cpu")
        monkeypatch.setenv("ASCEND_RUNTIME_SOC", soc or "")

    return use


@pytest.mark.parametrize(
    ("keys", "recurrent", "lead", "block", "page", "padded"),
    [
        (1024, 1048576, 49152, 1024, 2097152, 2146304),
        (512, 524288, 24576, 1024, 1048576, 1073152),
        (512, 262144, 12288, 512, 524288, 536576),
        (512, 131072, 6144, 256, 262144, 268288),
    ],
    ids=["TP1", "TP2", "TP4", "TP8"],
)
def test_sizes_of_qwen3_next(keys, recurrent, lead, block, page, padded) -> None:
    plan = plan_contiguous([lead, recurrent], keys, keys, 16)
    assert plan == HybridPlan(block, page, padded)


def test_states_in_single_precision() -> None:
    assert plan_contiguous([RECURRENT], 1024, 1024, None) == HybridPlan(1024, 2097152, 2097152)


def test_four_states_lead_with_three() -> None:
    plan = plan_contiguous([CONV, CONV, CONV, RECURRENT], 1024, 1024, 16)
    assert plan.mamba_page_bytes_padded == 3 * CONV + 2097152


def test_mla_has_no_values() -> None:
    plan = plan_contiguous([4096, 128 * 1152 * 2], 1152, 0, 16)
    assert plan == HybridPlan(256, 294912, 4096 + 294912)


def test_no_state_no_plan() -> None:
    assert plan_contiguous([], 1024, 1024, 16) is None


@pytest.mark.parametrize(("asked", "warnings"), [(None, 0), (16, 0), (1024, 0), (2048, 1)])
def test_the_block_size_that_fits_wins(caplog, asked, warnings) -> None:
    with caplog.at_level(logging.INFO):
        assert plan_contiguous([RECURRENT], 1024, 1024, asked).block_size == 1024
    assert len(caplog.records) == warnings
    for record in caplog.records:
        assert record.levelname == "WARNING"
        assert record.message == (
            "block size 2048 is overridden: a recurrent state has the size of 1024 tokens' keys"
        )


@pytest.mark.parametrize(
    ("recurrent", "keys", "nearest"),
    [
        (8192, 1024, "131072"),  # a short convolution
        (2097152, 1152, "2064384 or 2211840"),  # MLA beside KDA
        (0, 1024, "131072"),
        (131072 + 64, 1024, "131072 or 262144"),
    ],
)
def test_state_that_fits_no_block(recurrent, keys, nearest) -> None:
    with pytest.raises(ValueError) as caught:
        plan_contiguous([recurrent], keys, keys, 16)
    assert str(caught.value) == (
        f"no block size fits this hybrid model: its recurrent state has {recurrent} bytes, the keys"
        f" {keys} a token, so 128 tokens {128 * keys}; the state must be a multiple of that"
        f" (nearest: {nearest}); another tensor-parallel size or KV cache dtype may fit"
    )


def test_keys_take_some_bytes() -> None:
    with pytest.raises(ValueError, match="keys take 0 bytes a token"):
        plan_contiguous([8192], 0, 0, None)


@pytest.mark.parametrize("soc", ["A2", "A3", "A5", "310P"])
def test_npus_align_to_128(chip, soc: str) -> None:
    chip(soc)
    assert hybrid_kv.kernel_block_alignment(16) == 128
    assert hybrid_kv.contiguous_layout() is (soc != "310P")


def test_others_keep_their_alignment(chip) -> None:
    chip(None)
    assert hybrid_kv.kernel_block_alignment(16) == 16
    assert hybrid_kv.kernel_block_alignment(64, use_mla=True) == 64
    assert hybrid_kv.contiguous_layout() is False


def test_mla(chip) -> None:
    chip("A2")
    assert hybrid_kv.kernel_block_alignment(64, use_mla=True) == 128
    chip("310P")
    with pytest.raises(RuntimeError, match="hybrid models with MLA attention do not run on 310P"):
        hybrid_kv.kernel_block_alignment(64, use_mla=True)


def config(mode: str, *, mla: bool = False, states: tuple = ((3, 8192), (16, 128, 128))):
    cache = SimpleNamespace(
        block_size=16, mamba_cache_mode=mode, mamba_block_size=4096, mamba_page_size_padded=None
    )
    model = SimpleNamespace(
        use_mla=mla, get_num_kv_heads=lambda parallel: parallel, get_head_size=lambda: 256
    )
    classes = SimpleNamespace(
        get_mamba_state_shape_from_config=lambda config: states,
        get_mamba_state_dtype_from_config=lambda config: (torch.bfloat16, torch.float32)[
            : len(states)
        ],
    )
    return SimpleNamespace(cache_config=cache, model_config=model, parallel_config=2), classes


@pytest.mark.parametrize(("mode", "mamba_block"), [("align", 1024), ("none", 4096)])
def test_apply_writes_the_plan(mode: str, mamba_block: int) -> None:
    vllm_config, model_cls = config(mode)
    hybrid_kv.apply(vllm_config, model_cls, torch.bfloat16)
    assert vars(vllm_config.cache_config) == {
        "block_size": 1024,
        "mamba_cache_mode": mode,
        "mamba_block_size": mamba_block,
        "mamba_page_size_padded": 2097152 + CONV,
    }


def test_apply_gives_mla_no_room_for_values() -> None:
    vllm_config, model_cls = config("none", mla=True)
    hybrid_kv.apply(vllm_config, model_cls, torch.bfloat16)
    assert vllm_config.cache_config.mamba_page_size_padded == 1048576 + CONV


def test_apply_leaves_a_model_without_states_alone() -> None:
    vllm_config, model_cls = config("none", states=())
    before = dict(vars(vllm_config.cache_config))
    hybrid_kv.apply(vllm_config, model_cls, torch.bfloat16)
    assert vars(vllm_config.cache_config) == before


def test_mode_all_is_refused() -> None:
    vllm_config, model_cls = config("all")
    with pytest.raises(ValueError, match="'all' is not supported with the contiguous layout"):
        hybrid_kv.apply(vllm_config, model_cls, torch.bfloat16)
