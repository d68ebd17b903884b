"""W13: where there is no UVA, offloading knows it and the buffers of the V2 runner do without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from platform_kit import KINDS, on_platform
from vllm.model_executor.offloader.uva import UVAOffloader
from vllm.platforms import interface
from vllm.utils import platform_utils
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.buffer_utils import StagedWriteTensor, UvaBackedTensor, UvaBufferPool
from vllm.v1.worker.gpu.states import RequestState

from ascend_runtime.uva import HostMirrorBuffer

WITH_UVA = ("cuda", "rocm", "xpu")
QUESTIONS = (platform_utils.is_pin_memory_available, platform_utils.is_uva_available)


@contextmanager
def on(kind: str) -> Iterator[None]:
    """Be on a platform; the answers are kept otherwise."""
    with on_platform(kind):
        for question in QUESTIONS:
            question.cache_clear()
        try:
            yield
        finally:
            for question in QUESTIONS:
                question.cache_clear()


@pytest.mark.parametrize("kind", KINDS)
def test_uva_is_where_there_is_a_view(kind: str) -> None:
    with on(kind):
        assert platform_utils.is_uva_available() is (kind in WITH_UVA)
        assert platform_utils.is_pin_memory_available() is (kind != "cpu")
        assert UVAOffloader(1 << 30).uva_offloading is (kind in WITH_UVA)


@pytest.mark.parametrize("kind", WITH_UVA)
def test_uva_still_needs_pinned_memory(monkeypatch, kind: str) -> None:
    monkeypatch.setattr(interface, "in_wsl", lambda: True)
    with on(kind):
        assert platform_utils.is_uva_available() is False


def test_user_can_still_switch_it_off(monkeypatch) -> None:
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "1")
    with on("cuda"):
        assert UVAOffloader(1 << 30).uva_offloading is False


# With UVA: one memory, seen from both sides.


@pytest.fixture
def uva(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pinning succeed, and take the host's tensor for the device's view of it."""

    def zeros(*arguments: object, pin_memory: bool = False, **keywords: object) -> torch.Tensor:
        return torch.zeros(*arguments, **keywords)

    stub = SimpleNamespace(**{**vars(torch), "zeros": zeros})
    monkeypatch.setattr(buffer_utils, "torch", stub)
    monkeypatch.setattr(buffer_utils, "get_accelerator_view_from_cpu_tensor", lambda x: x.view(-1))


@pytest.mark.usefixtures("uva")
@pytest.mark.parametrize("kind", WITH_UVA)
def test_with_uva_the_buffers_are_vllms(kind: str) -> None:
    with on(kind):
        pool = UvaBufferPool(8, torch.int32)
        staged = StagedWriteTensor(6, torch.int32, torch.device("cpu"), uva_instead_of_gpu=True)
    assert {type(buffer) for buffer in pool._uva_bufs} == {buffer_utils.UvaBuffer}
    view = pool.copy_to_uva([1, 2, 3])
    assert view.tolist() == [1, 2, 3]
    pool._uva_bufs[pool._curr].np[0] = 9  # without a copy
    assert view.tolist() == [9, 2, 3]
    assert staged.gpu is staged._uva_buf.uva


# Without.


def pool_of(size: object = 8, dtype: torch.dtype = torch.int32, **keywords: int) -> UvaBufferPool:
    with on("cpu"):
        return UvaBufferPool(size, dtype, **keywords)


def test_pool_goes_round() -> None:
    pool = pool_of()
    assert {type(buffer) for buffer in pool._uva_bufs} == {HostMirrorBuffer}
    first = pool.copy_to_uva([1, 2, 3])
    second = pool.copy_to_uva([4, 5])
    assert (first.tolist(), second.tolist()) == ([1, 2, 3], [4, 5])
    assert first.data_ptr() != second.data_ptr()
    third = pool.copy_to_uva([6])
    assert third.data_ptr() == first.data_ptr()
    assert first.tolist() == [6, 2, 3]  # the rows behind are as they were
    assert second.tolist() == [4, 5]


@pytest.mark.parametrize(
    "given",
    [[1, 2, 3], np.array([1, 2, 3]), torch.tensor([1, 2, 3])],
    ids=["list", "numpy", "torch"],
)
def test_pool_takes(given: object) -> None:
    pool = pool_of()
    view = pool.copy_to_uva(given)
    assert view.tolist() == [1, 2, 3] and view.dtype == torch.int32
    assert pool.copy_to_gpu(torch.tensor([1, 2, 3])).tolist() == [1, 2, 3]
    out = torch.zeros(2, dtype=torch.int32)
    assert pool.copy_to_gpu(np.array([7, 8]), out) is out and out.tolist() == [7, 8]


def test_steps_in_flight_keep_their_memory() -> None:
    pool = pool_of(max_concurrency=3)
    views = [pool.copy_to_uva([n, n]) for n in range(3)]
    assert [view.tolist() for view in views] == [[0, 0], [1, 1], [2, 2]]


def test_backed_tensor_is_handed_over_when_asked() -> None:
    with on("cpu"):
        tensor = UvaBackedTensor(4, torch.float32)
    tensor.np[2] = 7
    assert tensor.gpu.tolist() == [0, 0, 0, 0]
    old = tensor.gpu
    assert tensor.copy_to_uva().tolist() == [0, 0, 7, 0]
    assert tensor.gpu.tolist() == [0, 0, 7, 0] and old.tolist() == [0, 0, 0, 0]
    assert type(tensor.np) is np.ndarray and len(tensor.np) == 4 and (tensor.np == 7).sum() == 1
    tensor.np[:] = [1, 2, 3, 4]
    assert tensor.copy_to_uva(2).tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["cpu", "npu"])
def test_large_tensor_lies_on_the_device_and_only_there(monkeypatch, kind: str) -> None:
    with on(kind):
        # Its small buffers would need the device.
        monkeypatch.setattr(buffer_utils, "UvaBufferPool", lambda *a, **k: None)
        staged = StagedWriteTensor(
            (3, 5), torch.int32, torch.device("meta"), uva_instead_of_gpu=True
        )
    assert staged.gpu.device.type == "meta" and staged.gpu.shape == (3, 5)
    assert not hasattr(staged, "_uva_buf")


def test_states_of_requests_can_be_made() -> None:
    with on("cpu"):
        states = RequestState(4, 16, 32, 0, 100, torch.device("cpu"), torch.float32, False)
    assert states.all_token_ids.gpu.shape == (4, 16)
    states.prompt_len.np[1] = 5
    assert states.prompt_len.copy_to_uva().tolist() == [0, 5, 0, 0]
