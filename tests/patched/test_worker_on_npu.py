"""The worker's edits that look at a device, on a device of type "npu" over host memory."""

from __future__ import annotations

from functools import partial

from patched_kit import npu_scene

scene = partial(npu_scene, "npu_worker_scenes.py")


def test_buffers_of_the_host() -> None:
    assert scene("buffers") == {
        "devices": ["npu", "cpu", "npu", "npu"],
        "pinned": [True, False],
        "pool": [[5, 2, 3], [4], [5]],
        "same": [True, False],
        "backed": [[0, 0, 0, 0], [0, 0, 7, 0]],
        "tokens": [[20, 21, 0, 0, 0, 0, 0, 0], [10, 11, 12, 0, 0, 0, 0, 0]],
        "lengths": [[0, 0, 2, 3], [0, 0, 0, 1]],
        "host": [0, 0, 0, 1],
    }


def test_weights_that_were_offloaded() -> None:
    assert scene("offload") == {
        "uva": False,
        "pinned": True,
        "bytes": 60,
        "output": ["npu", True],
    }


def test_batches_slots_and_states() -> None:
    assert scene("batches") == {
        "offsets": [0, 2, 4] + [8] * 7,
        "lengths": ["cpu", [2, 2, 4]],
        "slots": ["npu", "torch.int32", [[25600255, 25600385, -1, -1]]],
        "state": True,
        "chunk": 8192,
    }


def test_metadata_of_a_batch_with_drafts() -> None:
    assert scene("metadata") == {
        "False": ["Extended", "cpu", [7, 10], "npu", "npu"],
        "True": ["Extended", "cpu", [6, 9], "npu", "npu"],
    }


def test_exchange_among_gloo_ranks() -> None:
    assert scene("exchange") == [
        ["npu", [[0, 1, 100, 101], [2, 3, 102, 103], [4, 5, 104, 105]]],
        ["npu", [[6, 7, 106, 107]]],
    ]
