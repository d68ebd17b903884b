"""The worker rows of process groups and of the model runners' host side."""

from __future__ import annotations

from facts import fact


@fact
def hccl_group_options() -> bool:
    from vllm.distributed.parallel_state import GroupCoordinator

    return "pg_options" in GroupCoordinator.__init__.__code__.co_names


@fact
def group_all_to_all() -> bool:
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )
    from vllm.distributed.stateless_coordinator import StatelessGroupCoordinator

    both = (StatelessGroupCoordinator, DeviceCommunicatorBase)
    return all(callable(known.all_to_all) for known in both)


@fact
def mamba_copy_pointers() -> bool:
    from test_mamba_states import test_addresses_become_pointers_where_they_are_loaded as shown

    return shown() is None


@fact
def mamba_copy_launches() -> bool:
    from vllm.v1.worker import mamba_utils

    return "mamba_copy" in mamba_utils.batch_memcpy.__code__.co_names


@fact
def uva_predicate() -> bool:
    from platform_kit import on_platform
    from vllm.utils import platform_utils

    with on_platform("npu"):
        return platform_utils.is_uva_available() is False


@fact
def uva_host_mirror() -> bool:
    from test_uva_buffers import pool_of

    return pool_of().copy_to_uva([1, 2, 3]).tolist() == [1, 2, 3]


@fact
def host_seq_lens() -> bool:
    from vllm.v1.worker.gpu.input_batch import InputBatch
    from vllm.v1.worker.gpu.model_runner import GPUModelRunner

    filled = GPUModelRunner.prepare_inputs.__code__.co_names
    return "seq_lens_cpu_upper_bound" in InputBatch.__dataclass_fields__ and (
        "num_computed_tokens_np" in filled
    )


@fact
def query_start_loc_room() -> bool:
    from test_runner_batches import buffers

    return buffers("npu").query_start_loc.shape == (10,)


@fact
def slot_mapping_dtype() -> bool:
    from vllm.v1.worker.gpu.block_table import BlockTables

    return "slot_mapping_dtype" in BlockTables.__init__.__code__.co_names


@fact
def attn_metadata_class() -> bool:
    from vllm.v1.worker.gpu import attn_utils

    return "common_metadata" in attn_utils.build_attn_metadata.__code__.co_names
