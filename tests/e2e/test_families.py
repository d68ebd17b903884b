"""Families of models, on both devices and runners: the greedy tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch_platform
from e2e_kit import TEXTS, Ground, Run, by_transformers, deficits, prompts
from transformers import AutoModelForCausalLM

COUNT = 24
DENSE = ("qwen3", "llama", "mistral", "qwen3_moe")


def run(e2e: Ground, family: str, **options: Any) -> Run:
    folder = e2e.model(family)
    return Run(folder, prompts(folder), options, again=True)


@pytest.mark.parametrize(
    ("device", "v2"),
    [
        ("cpu", False),
        pytest.param("cpu", True, marks=pytest.mark.slow),
        pytest.param("npu", False, marks=pytest.mark.slow),
        ("npu", True),
    ],
)
def test_tokens_are_those_of_transformers(e2e: Ground, device: str, v2: bool) -> None:
    families = [family for family in DENSE if not (v2 and family == "mistral")]
    runs = [run(e2e, family) for family in families]
    results = e2e.generate(*runs, device=device, v2=v2)
    for one, result in zip(runs, results, strict=True):
        wanted = by_transformers(one.folder, one.prompts, COUNT)
        assert max(map(len, one.prompts)) > 96, "longer than a chunk of prefill"
        assert result["tokens"] == result["again"]["tokens"] == wanted, one.folder.name
        assert len({token for tokens in wanted for token in tokens}) > 20
        assert sum(result["cached"]) == 0
        assert sum(result["again"]["cached"]) > 0  # the second time, from the prefix cache


@pytest.mark.parametrize(
    ("device", "texts", "count"),
    [
        ("cpu", TEXTS, COUNT),
        pytest.param("npu", TEXTS[2:4], 6, marks=pytest.mark.slow),  # in the interpreter
        pytest.param("npu", TEXTS, COUNT, marks=pytest.mark.slow),
    ],
)
def test_gated_delta_nets(e2e: Ground, device: str, texts: tuple[str, ...], count: int) -> None:
    """They run in 16 bit only, so a token may differ where two are about as good."""
    folder = e2e.model("qwen3_next")
    options = {"dtype": "float16", "max_num_batched_tokens": 256}
    asked = Run(folder, prompts(folder, texts), options, {"max_tokens": count})
    assert max(map(len, asked.prompts)) > 2 * 64, "more than two chunks"
    (result,) = e2e.generate(asked, device=device)
    took = {way for name, way in result["chosen"].items() if name.startswith(("gdn.", "conv."))}
    assert took == {"kernel" if device == "npu" else "reference"}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lacks = torch.cat(deficits(model, asked.prompts, result["tokens"]))
    assert len(lacks) == count * len(texts)
    assert lacks.max() < 0.02, "logits are about 1 large, and their errors 0.001"
    assert (lacks == 0).float().mean() > 0.9


def test_package_is_self_contained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point names a class that the installed folder has, and nothing else is written."""
    torch_platform.install(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["npu_device", "torch_platform", "torch_platform-1.0.dist-info"]
    for device, class_name in {"cpu": "TorchPlatform", "npu": "NpuPlatform"}.items():
        monkeypatch.setenv("TORCH_PLATFORM_DEVICE", device)
        module, _, name = torch_platform.register().rpartition(".")
        file = tmp_path / (module.replace(".", "/") + ".py")
        assert name == class_name and f"class {name}(" in file.read_text("utf-8")
