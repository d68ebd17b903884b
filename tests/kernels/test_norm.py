"""Norms: the kernels against their definitions, and those against vLLM's own kernels."""

from __future__ import annotations

import importlib

import pytest
import torch
from interpreter import ascend_grids

from ascend_runtime import dispatch
from ascend_runtime.kernels import norm as kernels
from ascend_runtime.reference import norm as reference


@pytest.fixture
def l2norm(vllm_site):
    """vLLM's own function, decorated."""
    return importlib.import_module("vllm.model_executor.layers.fla.ops.l2norm").l2norm_fwd


@pytest.mark.parametrize("shape", [(0, 8), (1, 1), (5, 3, 24), (70, 128), (300, 40)])
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
