"""Worker rows of few lines."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

from facts import fact


@fact
def eagle_position_gather() -> bool:
    from test_eagle_gather import seen_by_later_steps

    return seen_by_later_steps([3, 2], [10, 20])["slots at"] == [13, 22]


@fact
def unquantized_gemm_op() -> bool:
    import torch
    from vllm.model_executor.layers import utils

    no, yes = (lambda: False), (lambda: True)
    utils.current_platform = SimpleNamespace(is_rocm=no, is_cpu=no, is_out_of_tree=yes)
    gemm = utils.dispatch_unquantized_gemm()
    out = gemm(None, torch.ones(2, 3, 4), torch.ones(5, 4), None)
    return gemm is utils.oot_unquantized_gemm and out.shape == (2, 3, 5)


@fact
def chunk_indices_zero_length() -> bool:
    import torch
    from vllm.model_executor.layers.fla.ops import index

    index.triton = SimpleNamespace(cdiv=lambda a, b: (a + b - 1) // b)
    found = index.prepare_chunk_indices(torch.tensor([0, 130, 130, 194]), 64)
    return found.tolist()[-1] == [2, 0]


@fact
def random_sample_backend() -> bool:
    from vllm.v1.sample.ops import topk_topp_sampler

    source = inspect.getsource(topk_topp_sampler)
    return "dynamic=True, backend=current_platform.simple_compile_backend)" in source
