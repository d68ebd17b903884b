"""W22: Mamba states are copied byte for byte, in the chunks and launches of the device."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from host_triton import kernels
from platform_kit import KINDS, on_platform
from vllm.model_executor.layers.mamba.mamba_utils import get_conv_copy_spec, get_temporal_copy_spec
from vllm.triton_utils import HAS_TRITON
from vllm.v1.utils import CpuGpuBuffer
from vllm.v1.worker import mamba_utils

import ascend_runtime.mamba_copy

KERNEL = "batch_memcpy_kernel"
SIZES = [0, 1, 1023, 1024, 1025, 24576, 262144]
CHUNKS = {kind: 8192 if kind == "npu" else 1024 for kind in KINDS}


def noise(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.randint(1, 250, shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def copy(pairs: list[tuple[torch.Tensor, torch.Tensor, int]]) -> list[tuple]:
    """Copy `size` bytes from and to where tensors begin; return the launches."""
    source, target = (torch.tensor([p[i].data_ptr() for p in pairs]) for i in (0, 1))
    sizes = torch.tensor([p[2] for p in pairs], dtype=torch.int32)
    memory = tuple(tensor for pair in pairs for tensor in pair[:2])
    with kernels(mamba_utils, KERNEL, memory=memory) as made:
        mamba_utils.batch_memcpy(source, target, sizes)
    return made[KERNEL].launches


@pytest.mark.parametrize("kind", KINDS)
def test_every_byte_and_no_other(kind: str) -> None:
    sources = [noise(size + 16) for size in SIZES]
    targets = [torch.zeros(size + 16, dtype=torch.uint8) for size in SIZES]
    with on_platform(kind):
        launches = copy(list(zip(sources, targets, SIZES, strict=True)))
    for source, target, size in zip(sources, targets, SIZES, strict=True):
        assert target[:size].equal(source[:size])
        assert target[size:].eq(0).all()
    assert launches == [((7,), {"BLOCK_SIZE": CHUNKS[kind]})]


@pytest.mark.parametrize("kind", ["npu", "cuda"])
@pytest.mark.parametrize("size", [96, 1000, 4096, 20000])
def test_state_that_overlaps_itself_is_moved_down(kind: str, size: int) -> None:
    state = noise(size + 96)
    before = state.clone()
    with on_platform(kind):
        copy([(state[96:], state, size)])
    assert state[:size].equal(before[96:])
    assert state[size:].equal(before[size:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_blocks_of_a_layer_through_vllms_own_bookkeeping(dtype: torch.dtype) -> None:
    """An accepted draft shifts the convolution's state by a row, and takes the next block's."""
    conv, temporal = noise(4, 4, 6, dtype=dtype), noise(4, 2, 5, 3, dtype=dtype)
    group = SimpleNamespace(layer_names=["layer"])
    n = 8
    buffers = mamba_utils.MambaCopyBuffers(
        *(
            CpuGpuBuffer(n, dtype=kind, device="cpu", pin_memory=False)
            for kind in (torch.int64, torch.int64, torch.int32)
        )
    )
    wanted = conv.clone(), temporal.clone()
    wanted[0][1, :3] = conv[2, 1:]
    wanted[1][1] = temporal[3]
    mamba_utils.collect_mamba_copy_meta(
        buffers,
        SimpleNamespace(kv_cache_groups=[group]),
        (get_conv_copy_spec, get_temporal_copy_spec),
        [0],
        src_block_idx=1,
        dest_block_idx=0,
        accept_token_bias=1,
        req_state=SimpleNamespace(block_ids=[[1, 2, 3]]),
        forward_context={"layer": SimpleNamespace(kv_cache=[[conv, temporal]])},
    )
    with on_platform("npu"), kernels(mamba_utils, KERNEL, memory=(conv, temporal)):
        mamba_utils.do_mamba_copy_block(buffers)
    assert conv.equal(wanted[0]) and temporal.equal(wanted[1])


def test_more_copies_than_a_launch_has_programs(monkeypatch) -> None:
    monkeypatch.setattr(ascend_runtime.mamba_copy, "_PROGRAMS", 4)
    sources, targets = noise(10, 3), torch.zeros(10, 3, dtype=torch.uint8)
    pairs = [(a, b, 3) for a, b in zip(sources, targets, strict=True)]
    with on_platform("npu"):
        launches = copy(pairs)
    assert targets.equal(sources)
    assert [grid for grid, _ in launches] == [(4,), (4,), (2,)]
    with on_platform("cuda"):
        assert [grid for grid, _ in copy(pairs)] == [(10,)]


def test_addresses_become_pointers_where_they_are_loaded() -> None:
    """triton-ascend 3.2.0 lowers this form, and aborts on a cast of a block of integers."""
    assert not HAS_TRITON  # so this is the plain function
    lines = inspect.getsource(mamba_utils.batch_memcpy_kernel).splitlines()
    casts = [line.strip() for line in lines if "pointer_type" in line]
    assert casts == [
        f"{name}_ptr = tl.load({name}_ptrs + pid).to(tl.pointer_type(tl.uint8))"
        for name in ("src", "dst")
    ]


def test_wrapper_and_kernel_are_one_of_each() -> None:
    assert mamba_utils.do_mamba_copy_block.__globals__["batch_memcpy"] is mamba_utils.batch_memcpy
    assert inspect.getsource(mamba_utils).count(f"def {KERNEL}") == 1
    assert mamba_utils.batch_memcpy_kernel.__module__ == mamba_utils.__name__
