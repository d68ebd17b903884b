"""A host buffer and its copy on the device; here both lie in host memory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_runtime.uva import HostMirrorBuffer


@pytest.fixture(autouse=True)
def platform(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = SimpleNamespace(current_platform=SimpleNamespace(device_type="cpu"))
    utils = SimpleNamespace(is_pin_memory_available=lambda: False)
    monkeypatch.setitem(sys.modules, "vllm.platforms", cpu)
    monkeypatch.setitem(sys.modules, "vllm.utils.platform_utils", utils)


def test_begins_as_zeros_of_the_shape() -> None:
    for size, shape in ((4, (4,)), ((2, 3), (2, 3)), ([2, 3], (2, 3))):
        buffer = HostMirrorBuffer(size, torch.int32)
        for part in (buffer.cpu, buffer.uva):
            assert part.shape == shape and part.dtype == torch.int32 and not part.any()
        assert buffer.np.shape == shape and buffer.np.dtype == np.int32


def test_device_sees_only_what_was_handed_over() -> None:
    buffer = HostMirrorBuffer((3, 2), torch.float32)
    buffer.np[:] = 7
    assert buffer.uva.eq(0).all()
    view = buffer.device_view(2)
    assert view.tolist() == [[7, 7], [7, 7]]
    assert buffer.uva.tolist() == [[7, 7], [7, 7], [0, 0]]
    buffer.cpu[:] = 9
    assert view.eq(7).all()
    assert view.data_ptr() == buffer.uva.data_ptr()
    assert buffer.device_view(1).tolist() == [[9, 9]]
    assert buffer.uva.tolist() == [[9, 9], [7, 7], [0, 0]]


def test_no_rows() -> None:
    assert HostMirrorBuffer(3, torch.int64).device_view(0).shape == (0,)


def test_host_memory_is_plain() -> None:
    """Nothing stands between its users and numpy or torch."""
    buffer = HostMirrorBuffer(3, torch.int32)
    assert type(buffer.np) is np.ndarray and type(buffer.cpu) is torch.Tensor
    assert len(buffer.np) == 3 and (buffer.np == 0).all() and (buffer.np + 1).sum() == 3


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Callable, types, arguments=(), keywords=None):
        self.names.append(str(function.overloadpacket))
        self.last = arguments
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("rows", [1, 1000])
def test_hand_over_is_one_copy_that_need_not_be_waited_for(rows: int) -> None:
    buffer = HostMirrorBuffer(1000, torch.int32)
    with Operators() as seen:
        buffer.device_view(rows)
    assert seen.names == ["aten.slice", "aten.slice", "aten.copy_"]
    assert seen.last[2] is True  # non_blocking


def test_device_may_be_named() -> None:
    assert HostMirrorBuffer(3, torch.int32, torch.device("meta")).uva.device.type == "meta"


def test_default_device_does_not_move_the_hosts_part() -> None:
    with torch.device("meta"):
        buffer = HostMirrorBuffer(3, torch.int32)
    assert buffer.cpu.device.type == buffer.uva.device.type == "cpu"
