"""P2 and its 310P form: block and page sizes of hybrid models, through vLLM's own method."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from types import ModuleType, SimpleNamespace

import pytest
import torch
from patched_kit import pristine
from platform_kit import on_platform
from vllm.config import CacheConfig
from vllm.model_executor.models import config as models_config
from vllm.model_executor.models.qwen3_next import Qwen3NextForCausalLM

#: Gated delta net of Qwen3-Next: 32 value heads of 128x128, and a convolution of 3x8192.
TEXT = SimpleNamespace(
    linear_num_key_heads=16,
    linear_num_value_heads=32,
    linear_key_head_dim=128,
    linear_value_head_dim=128,
    linear_conv_kernel_dim=4,
    mamba_ssm_dtype="auto",
)


def states(*shapes: tuple[int, ...]) -> SimpleNamespace:
    """A model class with these states, in bfloat16."""
    return SimpleNamespace(
        get_mamba_state_shape_from_config=lambda vllm_config: shapes,
        get_mamba_state_dtype_from_config=lambda vllm_config: (torch.bfloat16,) * len(shapes),
    )


def vllm_config(
    tp: int = 1, *, mode: str = "none", caching: bool = False, mla: bool = False, **cache: object
) -> SimpleNamespace:
    """What the method looks at, of a model with 2 KV heads of 256."""
    model = SimpleNamespace(
        dtype=torch.bfloat16,
        use_mla=mla,
        max_model_len=4096,
        architecture="Qwen3NextForCausalLM",
        hf_text_config=TEXT,
        supports_mamba_prefix_caching=mode == "all",
        get_num_kv_heads=lambda parallel: max(1, 2 // parallel.tensor_parallel_size),
        get_head_size=lambda: 576 if mla else 256,
        get_mamba_chunk_size=lambda: 256,
    )
    return SimpleNamespace(
        attention_config=SimpleNamespace(backend=None),
        cache_config=CacheConfig(
            enable_prefix_caching=caching, mamba_cache_mode=mode, mamba_cache_dtype="auto", **cache
        ),
        model_config=model,
        parallel_config=SimpleNamespace(tensor_parallel_size=tp),
        scheduler_config=SimpleNamespace(enable_chunked_prefill=True),
        speculative_config=None,
    )


Sizes = tuple[object, object, object]


def sizes(
    config: SimpleNamespace,
    model_cls: object = Qwen3NextForCausalLM,
    module: ModuleType = models_config,
) -> Sizes:
    """Block size, padded Mamba page and Mamba block size that the method leaves."""
    registry = SimpleNamespace(resolve_model_cls=lambda *a, **k: (model_cls, ""))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ModelRegistry", registry)
        module.HybridAttentionMambaModelConfig.verify_and_update_config(config)
    cache = config.cache_config
    return cache.block_size, cache.mamba_page_size_padded, cache.mamba_block_size


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(soc: str) -> None:
        monkeypatch.setenv("ASCEND_RUNTIME_SOC", soc)
        monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")

    return use


@pytest.mark.parametrize("soc", ["A2", "A3", "A5"])
@pytest.mark.parametrize(
    ("tp", "block", "padded"),
    [(1, 1024, 2146304), (2, 1024, 1073152), (4, 512, 536576), (8, 256, 268288)],
)
def test_contiguous_layout(chip, soc: str, tp: int, block: int, padded: int) -> None:
    chip(soc)
    assert sizes(vllm_config(tp)) == (block, padded, 4096)
    assert sizes(vllm_config(tp, mode="align", caching=True)) == (block, padded, block)


@pytest.mark.parametrize(
    ("tp", "block", "padded"),
    [(1, 640, 1310720), (2, 640, 655360), (4, 384, 393216), (8, 256, 262144)],
)
def test_310p_keeps_the_layout_and_aligns_to_128(chip, tp: int, block: int, padded: int) -> None:
    chip("310P")
    assert sizes(vllm_config(tp)) == (block, padded, 4096)


@pytest.mark.parametrize(
    ("tp", "block", "padded"),
    [(1, 544, 1114112), (2, 544, 557056), (4, 272, 278528), (8, 144, 147456)],
)
@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_off_npu(kind: str, tp: int, block: int, padded: int) -> None:
    with on_platform(kind):
        assert sizes(vllm_config(tp)) == (block, padded, 4096)


@pytest.fixture(scope="module")
def upstream(base) -> ModuleType:
    return pristine(base.root, "vllm/model_executor/models/config.py")


def attempt(config: SimpleNamespace, model_cls: object, module: ModuleType) -> object:
    try:
        return sizes(config, model_cls, module), vars(config.cache_config)
    except Exception as error:
        return repr(error)


def test_off_npu_is_upstream_to_the_bit(upstream) -> None:
    models = [
        Qwen3NextForCausalLM,
        states((3, 8192), (64, 128, 128)),
        states((4096,)),
        states((8, 64), (8, 64), (8, 64), (16, 128, 128)),
        states((0,)),
    ]
    tried = 0
    for model_cls, tp, (mode, caching), mla, asked in itertools.product(
        models,
        (1, 2, 8),
        [("none", False), ("align", True), ("all", True)],
        (False, True),
        (None, 256),
    ):
        asked_for = {} if asked is None else {"mamba_block_size": asked, "block_size": 2048}
        if mode == "none":
            asked_for.pop("mamba_block_size", None)  # refused without prefix caching
        results = [
            attempt(vllm_config(tp, mode=mode, caching=caching, mla=mla, **asked_for), model_cls, m)
            for m in (models_config, upstream)
        ]
        assert results[0] == results[1]
        tried += not isinstance(results[0], str)
    assert tried == 180


def test_larger_block_size_is_overridden_with_a_warning(chip, monkeypatch) -> None:
    """Blocks of different owners would overlap."""
    chip("A2")
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    log = logging.getLogger("vllm.ascend_runtime.hybrid_kv")
    monkeypatch.setattr(log, "handlers", [handler])
    monkeypatch.setattr(log, "level", logging.WARNING)
    assert sizes(vllm_config(block_size=2048))[0] == 1024
    assert sizes(vllm_config(block_size=512))[0] == 1024
    (record,) = records
    assert "block size 2048 is overridden" in record.getMessage()


def test_one_state_is_counted_once(chip) -> None:
    chip("A2")
    assert sizes(vllm_config(), states((256, 1024)))[:2] == (512, 2 * 524288)


def test_four_states_are_all_counted(chip) -> None:
    chip("A2")
    conv = (3, 4096)
    result = sizes(vllm_config(), states(conv, conv, conv, (32, 128, 128)))
    assert result[:2] == (1024, 3 * (3 * 4096 * 2) + 2097152)


def test_state_that_fits_no_block_is_explained(chip) -> None:
    chip("A2")
    with pytest.raises(ValueError, match=r"recurrent state has 8192 bytes.*nearest: 131072\)"):
        sizes(vllm_config(), states((4096,)))


def test_mla_gets_no_room_for_values(chip) -> None:
    chip("A3")
    config = vllm_config(mla=True, tp=2)  # one latent head of 576
    assert sizes(config, states((3, 64), (256, 576)))[:2] == (256, 256 * 576 * 2 + 384)


def test_mla_on_310p_is_refused(chip) -> None:
    chip("310P")
    with pytest.raises(RuntimeError, match="hybrid models with MLA attention do not run on 310P"):
        sizes(vllm_config(mla=True, tp=2), states((256, 576)))


@pytest.mark.parametrize("soc", ["A2", "310P"])
def test_hybrid_without_state_is_left_alone(chip, soc: str) -> None:
    chip(soc)
    config = vllm_config()
    assert sizes(config, states((0,))) == (16, None, 4096)


def test_mode_all_is_refused_not_changed_in_silence(chip) -> None:
    chip("A2")
    with pytest.raises(ValueError, match="'all' is not supported with the contiguous layout"):
        sizes(vllm_config(mode="all", caching=True))


def test_mamba_block_size_of_the_user_is_kept(chip) -> None:
    chip("A2")
    config = vllm_config(mode="align", caching=True, mamba_block_size=2048)
    assert sizes(config)[2] == 1024  # "align" means the block size, with upstream too
