"""Speculative decoding: the tokens are those without drafts, and good drafts are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_drafts
from e2e_kit import Ground, Run, by_transformers, prompts

COUNT, DRAFTS = 32, 3


@pytest.fixture(scope="module")
def pair(e2e: Ground) -> tuple[Path, Path]:
    """A target, and a draft that is often right about it."""
    target, draft = e2e.work / "target", e2e.work / "draft"
    return tiny_drafts.save_target(target), tiny_drafts.save_draft(draft, target)


def run(target: Path, draft: Path | None, **options: object) -> Run:
    if draft is not None:
        options["speculative_config"] = {
            "method": "eagle3",
            "model": str(draft),
            "num_speculative_tokens": DRAFTS,
        }
    return Run(target, prompts(target), options, {"max_tokens": COUNT})


@pytest.mark.parametrize(("device", "v2"), [("cpu", True), ("npu", False), ("npu", True)])
def test_drafts_change_no_token(e2e: Ground, pair, device: str, v2: bool) -> None:
    """vLLM's runner for CPUs refuses drafts, so the first runner is tried on the other device."""
    asked = run(*pair)
    plain, drafted = e2e.generate(run(pair[0], None), asked, device=device, v2=v2)
    assert plain["tokens"] == drafted["tokens"]
    assert plain["tokens"] == by_transformers(pair[0], asked.prompts, COUNT)
    counts = drafted["counts"]
    assert counts["draft_tokens"] == DRAFTS * counts["drafts"]
    rate = counts["accepted_tokens"] / counts["draft_tokens"]
    assert 0.3 < rate < 1, "some are right, some are not"


def test_draft_of_a_rotated_target(e2e: Ground, pair, tmp_path_factory) -> None:
    """It is right as often as about the target that was not rotated."""
    rotated = tiny_drafts.save_rotated(tmp_path_factory.mktemp("rotated"), pair[0])
    before, after = e2e.generate(
        run(*pair), run(rotated, pair[1], quantization="ascend"), device="npu", v2=True
    )
    assert before["tokens"] == after["tokens"]
    assert before["counts"] == after["counts"]
