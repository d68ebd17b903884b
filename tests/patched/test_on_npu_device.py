"""Edits that look at a device, on a device of type "npu" over host memory."""

from __future__ import annotations

from functools import partial

import pytest
from patched_kit import npu_scene

MIB = 1 << 20

scene = partial(npu_scene, "npu_scenes.py")


@pytest.mark.parametrize(
    ("name", "asked"), [("memory", "npu"), ("memory-statistics", "accelerator")]
)
def test_memory_profiling(name: str, asked: str) -> None:
    """PX1: with an allocator that answers torch.accelerator, and with one that does not."""
    assert scene(name) == {"peak": 5 * MIB, "reserved": True, "asked": [asked, asked]}


def test_device_tensors_of_gloo_ranks() -> None:
    """P1: gloo refuses them, so they go through the host."""
    answers = scene("collectives")
    assert len(answers) == 2
    for answer in answers.values():
        assert answer == {
            "npu": True,
            "refused": answer["refused"],
            "reduced": [True, "npu", [[3, 3], [3, 3]]],
            "dict": {"ids": [7, 8], "host": [9], "n": 3},
            "devices": ["npu", "cpu"],
            "single": ["npu", [10]],
        }
        assert answer["refused"] in ("RuntimeError", "ValueError")
