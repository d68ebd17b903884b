"""Qwen3.5: gated delta nets whose projections come apart, and positions of three kinds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_qwen3_5
import torch
from e2e_kit import TEXTS, Ground, Run, deficits, prompts
from transformers import AutoModelForCausalLM

#: vLLM has the model in a module that handles pictures too, which these tests do not.
NO_VISION = Path(tiny_qwen3_5.__file__).with_name("no_vision")


@pytest.mark.parametrize(
    ("device", "texts", "count"),
    [
        ("cpu", TEXTS, 24),
        # The interpreter takes its time.
        pytest.param("npu", TEXTS[2:4], 6, marks=pytest.mark.slow),
    ],
)
def test_text(e2e: Ground, device: str, texts: tuple[str, ...], count: int) -> None:
    """It runs in 16 bit only, so a token may differ where two are about as good."""
    folder, same = e2e.work / "qwen3_5", e2e.work / "qwen3_5_same"
    if not folder.exists():
        tiny_qwen3_5.save(folder, same)
    options = {"dtype": "float16", "max_num_batched_tokens": 256, "language_model_only": True}
    run = Run(folder, prompts(folder, texts), options, {"max_tokens": count})
    assert max(map(len, run.prompts)) > 2 * 64, "more than two chunks"
    path = os.pathsep.join([e2e.environment()["PYTHONPATH"], str(NO_VISION)])
    (result,) = e2e.generate(run, device=device, PYTHONPATH=path)
    took = {way for name, way in result["chosen"].items() if name.startswith(("gdn.", "conv."))}
    assert took == {"kernel" if device == "npu" else "reference"}
    model = AutoModelForCausalLM.from_pretrained(same, dtype=torch.float32).eval()
    lacks = torch.cat(deficits(model, run.prompts, result["tokens"]))
    assert len(lacks) == count * len(texts)
    assert lacks.max() < 0.02, "logits are about 1 large, and their errors 0.001"
    assert (lacks == 0).float().mean() > 0.9
