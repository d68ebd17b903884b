"""The platform rows that configure, size and communicate."""

from __future__ import annotations

import inspect
import os
from types import SimpleNamespace

from facts import fact


@fact
def collectives_310p() -> bool:
    from vllm.distributed.device_communicators import base_device_communicator
    from vllm.v1.worker.gpu import pp_utils

    import ascend_runtime.collectives

    seen: list = []
    real = ascend_runtime.collectives.all_reduce
    ascend_runtime.collectives.all_reduce = lambda *a, **k: seen.append(k)
    try:
        stub = SimpleNamespace(device_group="group")
        base_device_communicator.DeviceCommunicatorBase.all_reduce(stub, 1)
    finally:
        ascend_runtime.collectives.all_reduce = real
    return seen == [{"group": "group"}] and "collectives" in pp_utils.pp_receive.__code__.co_names


@fact
def hybrid_block_size() -> bool:
    import pytest
    from test_hybrid_block_size import sizes, vllm_config

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
        patch.setenv("ASCEND_RUNTIME_SOC", "A2")
        return sizes(vllm_config())[:2] == (1024, 2146304)


@fact
def minimax_fp8_to_bf16() -> bool:
    from test_minimax_config import FP8, bare, verified

    return verified("npu", bare("minimax_m2", FP8)) is None


@fact
def minimax_hccl_expansion() -> bool:
    import pytest
    from platform_kit import on_platform
    from test_minimax_config import VARIABLE, bare

    with pytest.MonkeyPatch.context() as patch, on_platform("npu"):
        patch.delenv(VARIABLE, raising=False)
        config = bare("minimax_m2", enforce_eager=False, is_encoder_decoder=False)
        config._verify_cuda_graph()
        found = os.environ.pop(VARIABLE, None)
    return found == "AIV"


@fact
def mla_sparse_spec() -> bool:
    from test_mla_spec import C8, spec

    return spec(**C8).page_size_bytes == 164096


@fact
def accelerator_memory() -> bool:
    from vllm.distributed import parallel_state
    from vllm.utils import mem_utils

    return (
        "accel_mem" in parallel_state.cleanup_dist_env_and_memory.__code__.co_names
        and "torch.accelerator.memory_stats" not in inspect.getsource(mem_utils.MemorySnapshot)
    )
