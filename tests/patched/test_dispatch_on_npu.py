"""What dispatch takes on the device of type "npu", over host memory, and that it is right."""

from __future__ import annotations

import pytest
from patched_kit import npu_scene

VALUES = {
    "norm": [[-1.0, 1.0]],
    "greedy": [[10, 99, -1], [20, 200, -1]],
    "drawn": [1],
}


@pytest.fixture(scope="module", params=["references", "kernels", "vendor"])
def scene(request) -> tuple[str, dict]:
    return request.param, npu_scene("npu_dispatch_scenes.py", request.param)


def test_values_are_right_whoever_does_it(scene):
    name, answer = scene
    values = dict(answer["values"])
    assert values.pop("l2norm")[0] == pytest.approx([0.6, 0.8])
    assert values.pop("top")[0] == ([103.0, 104.0] if name == "vendor" else [-9.0, 4.0])
    assert values == VALUES


def test_choice_is_by_chip_and_by_what_is_there(scene):
    name, answer = scene
    with_kernel = "kernel" if name == "kernels" else "reference"
    top = "vendor" if name == "vendor" else "reference"
    assert answer["chosen"] == {
        "norm.l2norm_fwd": with_kernel,
        "norm.layer_norm_fwd": with_kernel,
        "rejection.greedy": with_kernel,
        "sampling.apply_top_k_top_p": top,
        "sampling.gumbel_sample": with_kernel,
        "slots.compute_slot_mappings": with_kernel,
    }


def test_each_slow_way_is_told_once(scene):
    """The warning names the operation; top-k has an operator of the plugin's, and no kernel."""
    name, answer = scene
    slow = [text.split()[0] for text in answer["told"] if "plain torch reference" in text]
    assert sorted(slow) == sorted(set(slow))
    missed = {
        "references": {
            "norm.l2norm_fwd",
            "norm.layer_norm_fwd",
            "rejection.greedy",
            "sampling.apply_top_k_top_p",
            "sampling.gumbel_sample",
        },
        "kernels": {"sampling.apply_top_k_top_p"},
    }
    missed["vendor"] = missed["references"] - {"sampling.apply_top_k_top_p"}
    assert set(slow) == missed[name]
