"""Norms: the kernels against their definitions, and those against vLLM's own kernels."""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import GridTooLarge, ascend_grids, launch_sizes

from ascend_runtime import dispatch
from ascend_runtime.kernels import norm as kernels
from ascend_runtime.reference import norm as reference


@pytest.fixture
def l2norm(vllm_site):
    """vLLM's own function, decorated."""
    return importlib.import_module("vllm.model_executor.layers.fla.ops.l2norm").l2norm_fwd


@pytest.mark.parametrize("shape", [(0, 8), (2, 0), (1, 1), (5, 3, 24), (70, 128), (300, 40)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_l2norm_kernel_is_the_definition(cores, shape, dtype):
    x = torch.randn(shape).to(dtype)
    with ascend_grids():
        got = kernels.l2norm_fwd(x)
    torch.testing.assert_close(got, reference.l2norm_fwd(x))


def test_l2norm_kernel_takes_strides_and_dtypes(cores):
    x = torch.randn(70, 64)[:, ::2].T
    got = kernels.l2norm_fwd(x, 1e-3, torch.float16)
    assert got.dtype == torch.float16
    torch.testing.assert_close(got, reference.l2norm_fwd(x, 1e-3, torch.float16))


def test_l2norm_refuses_what_fits_no_tile():
    with pytest.raises(RuntimeError, match="8193 columns, at most 8192"):
        kernels.l2norm_fwd(torch.ones(1, 8193))


@pytest.mark.parametrize("shape", [(1, 1), (5, 3, 24), (70, 128)])
def test_l2norm_definition_is_vllms_kernel(l2norm, shape):
    x = torch.randn(shape)
    with dispatch.override("upstream"):
        torch.testing.assert_close(l2norm(x), reference.l2norm_fwd(x))


def layer_norm_call(rows: int, columns: int, dtype=torch.float32, bias=True, gate=True) -> dict:
    table = torch.randn(rows, 3 * columns).to(dtype)
    return {
        "x": table[:, :columns] + 0.5,
        "weight": torch.randn(columns).to(dtype),
        "bias": torch.randn(columns).to(dtype) if bias else None,
        "eps": 1e-5,
        "z": table[:, columns : 2 * columns] if gate else None,
    }


KINDS = [
    {"is_rms_norm": rms, "norm_before_gate": last, "activation": activation}
    for rms in (True, False)
    for last in (True, False)
    for activation in ("swish", "silu", "sigmoid")
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.parametrize(("rows", "columns", "size"), [(0, 8, 8), (1, 1, 1), (70, 120, 24)])
def test_layer_norm_kernel_is_the_definition(cores, rows, columns, size, kind):
    call = layer_norm_call(rows, columns)
    with ascend_grids():
        got = kernels.layer_norm_fwd(**call, **kind, group_size=size)
    torch.testing.assert_close(got, reference.layer_norm_fwd(**call, **kind, group_size=size))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("size", [4096, 300])
def test_layer_norm_of_wide_groups(cores, bias, gate, size):
    call = layer_norm_call(9, size, torch.float16, bias, gate)
    out = torch.full((9, 2 * size), 7.0)[:, ::1][:, :size]
    got = kernels.layer_norm_fwd(**call, out=out)
    assert got[0] is out
    torch.testing.assert_close(got[0], reference.layer_norm_fwd(**call)[0].float(), **CLOSE)


CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def test_layer_norm_kernel_takes():
    call = layer_norm_call(2, 4097)
    assert not kernels.layer_norm_fwd_fits(**call)
    assert kernels.layer_norm_fwd_fits(**call, group_size=1)
    assert not kernels.layer_norm_fwd_fits(**(layer_norm_call(2, 8) | {"z": torch.ones(8, 2).T}))


def test_kernels_leave_what_is_out_of_reach_of_32_bits():
    far = torch.empty_strided((3, 8), (2**30, 1), device="meta")
    call = layer_norm_call(3, 8)
    assert kernels.layer_norm_fwd_fits(**call)
    for name in ("x", "z", "out"):
        assert not kernels.layer_norm_fwd_fits(**(call | {name: far}))
    assert kernels.l2norm_fwd_fits(call["x"]) and not kernels.l2norm_fwd_fits(far)


@pytest.fixture
def guard(vllm_site, monkeypatch):
    module = importlib.import_module("vllm.model_executor.layers.fla.ops.layernorm_guard")
    monkeypatch.setattr(module, "num_compute_units", lambda index: 8)
    return module


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
@pytest.mark.parametrize("gate", [True, False])
def test_layer_norm_definition_is_vllms_kernel(guard, kind, gate):
    call = layer_norm_call(7, 48, gate=gate)
    with dispatch.override("upstream"):
        theirs = guard.layer_norm_fwd(**call, **kind, group_size=24)
    torch.testing.assert_close(theirs, reference.layer_norm_fwd(**call, **kind, group_size=24))


def test_sizes_that_break_vllms_grid(guard, monkeypatch):
    """8,192 tokens of 32 heads are 65,536 programs of vLLM's, and 48 of ours."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    x, weight = torch.empty(1, 4).expand(262_144, 4), torch.ones(4)
    with launch_sizes() as sizes:
        kernels.layer_norm_fwd(x, weight, None, 1e-6, is_rms_norm=True)
        kernels.l2norm_fwd(x)
    assert sizes == [48, 48]
    with dispatch.override("upstream"), ascend_grids(), pytest.raises(GridTooLarge):
        guard.layer_norm_fwd(x, weight, None, 1e-6, is_rms_norm=True)
