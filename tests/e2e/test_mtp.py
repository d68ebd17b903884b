"""Qwen3-Next with drafts of its own layer: as many states of gated delta nets as drafts."""

from __future__ import annotations

import pytest
import tiny_mtp
import torch
from e2e_kit import TEXTS, Ground, Run, deficits, prompts
from transformers import AutoModelForCausalLM

DRAFTS = 2


@pytest.mark.parametrize(
    ("way", "texts", "count"),
    [
        ("reference", TEXTS[:2], 16),
        # The interpreter takes its time.
        pytest.param("kernel", TEXTS[:3], 16, marks=pytest.mark.slow),
        pytest.param("reference", TEXTS, 24, marks=pytest.mark.slow),
    ],
)
def test_drafts_of_the_model_itself(
    e2e: Ground, way: str, texts: tuple[str, ...], count: int
) -> None:
    """The draft's layer and one of the model have the same index; both have caches.

    Gated delta nets run in 16 bit only, so a token may differ where two are about as good.
    """
    folder = e2e.work / "mtp"
    if not folder.exists():
        tiny_mtp.save(folder)
    speculation = {"method": "mtp", "num_speculative_tokens": DRAFTS}
    options = {"dtype": "float16", "max_num_batched_tokens": 256}
    options["speculative_config"] = speculation
    run = Run(folder, prompts(folder, texts), options, {"max_tokens": count})
    chosen = f"gdn={way},conv={way}"
    (result,) = e2e.generate(run, device="npu", ASCEND_RUNTIME_IMPL=chosen)
    took = {k for name, k in result["chosen"].items() if name.startswith(("gdn.", "conv."))}
    assert took == {way}
    counts = result["counts"]
    assert counts["draft_tokens"] == DRAFTS * counts["drafts"]
    rate = counts["accepted_tokens"] / counts["draft_tokens"]
    assert 0.2 < rate < 1, "some are right, some are not"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    lacks = torch.cat(deficits(model, run.prompts, result["tokens"]))
    assert len(lacks) == count * len(texts)
    assert lacks.max() < 0.01, "the best logits are about 1, and their errors 0.001"
    assert (lacks == 0).float().mean() > 0.9
