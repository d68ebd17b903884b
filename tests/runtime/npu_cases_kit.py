"""Loads the device of type "npu" into this process, and compares it with the CPU."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/platform")]

import npu_device  # noqa: E402

npu_device.load(devices=2, memory=1 << 30)
NPU = torch.device("npu", 0)


def on_npu(value: object) -> object:
    """Copy tensors, also those in lists, to the device."""
    if isinstance(value, torch.Tensor):
        return value.to(NPU)
    return [on_npu(item) for item in value] if isinstance(value, list) else value


def flat(value: object) -> list[object]:
    return [x for item in value for x in flat(item)] if isinstance(value, list | tuple) else [value]


def same(function: Callable[..., object], *arguments: object) -> None:
    """Run a function on both devices; results and arguments must be equal afterwards."""
    theirs = copy.deepcopy(list(arguments))
    ours = on_npu(theirs)
    torch.manual_seed(1)
    expected = function(*theirs)
    torch.manual_seed(1)
    got = function(*ours)
    for want, have in zip(flat([expected, theirs]), flat([got, ours]), strict=True):
        if isinstance(want, torch.Tensor):
            assert have.device == NPU, have.device
            assert (want.dtype, want.shape, want.stride(), want.storage_offset()) == (
                have.dtype,
                have.shape,
                have.stride(),
                have.storage_offset(),
            )
            torch.testing.assert_close(have.cpu(), want, rtol=0, atol=0, equal_nan=True)
        else:
            assert want == have


def raises(kind: type[Exception], text: str, function: Callable[[], object]) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


X = torch.arange(12.0).view(3, 4)
