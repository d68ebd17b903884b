"""W9: two processors keep their own `add_special_tokens=False`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from patched_kit import fresh
from vllm.transformers_utils.processors.hunyuan_vl import HunYuanVLProcessor


class Tokenizer:
    """Records what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def __call__(self, text: list[str], **keywords: object) -> dict:
        self.calls.append((text, keywords))
        return {"input_ids": torch.tensor([[5, 6, 7]])}


def hunyuan(tokenizer: Tokenizer) -> Callable:
    processor = HunYuanVLProcessor.__new__(HunYuanVLProcessor)
    processor.tokenizer = tokenizer
    processor.im_start_token_id, processor.im_end_token_id = 120118, 120119
    processor.pad_id = 120002
    processor._check_special_mm_tokens = lambda *args, **kwargs: None
    return processor


def absent(**members: object) -> dict[str, ModuleType]:
    """Stand-ins for what Nemotron-Parse takes from timm and torchvision for its images."""
    names = ("timm", "timm.data", "timm.data.constants", "torchvision")
    modules = {name: ModuleType(name) for name in names}
    for module in modules.values():
        vars(module).update(members)
    return modules


@pytest.fixture(scope="module")
def nemotron() -> Callable[[Tokenizer], Callable]:
    mean = std = (0.5, 0.5, 0.5)
    modules = absent(OPENAI_CLIP_MEAN=mean, OPENAI_CLIP_STD=std, transforms=None)
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        model = fresh("vllm.model_executor.models.nemotron_parse")

    def make(tokenizer: Tokenizer) -> Callable:
        processor = model.NemotronParseProcessor.__new__(model.NemotronParseProcessor)
        processor.tokenizer = tokenizer
        return processor

    return make


@pytest.fixture(params=["hunyuan", "nemotron"])
def make(request: pytest.FixtureRequest, nemotron) -> Callable[[Tokenizer], Callable]:
    return hunyuan if request.param == "hunyuan" else nemotron


@pytest.mark.parametrize("given", [{}, {"add_special_tokens": True}, {"add_special_tokens": False}])
def test_the_processors_own_value_wins(make, given: dict) -> None:
    tokenizer = Tokenizer()
    options = {**given, "truncation": True}
    before = dict(options)
    make(tokenizer)(text="a prompt", **options)
    assert options == before
    assert tokenizer.calls == [(["a prompt"], {"truncation": True, "add_special_tokens": False})]


def test_return_tensors_goes_the_way_it_always_has(make) -> None:
    tokenizer = Tokenizer()
    output = make(tokenizer)(text="a prompt", return_tensors="pt", add_special_tokens=True)
    ((_, keywords),) = tokenizer.calls
    assert keywords["add_special_tokens"] is False
    forwarded = make is hunyuan  # Nemotron's has a parameter of its own for it
    assert keywords.get("return_tensors") == ("pt" if forwarded else None)
    assert isinstance(output["input_ids"], torch.Tensor)
    assert output["input_ids"].tolist() == [[5, 6, 7]]
