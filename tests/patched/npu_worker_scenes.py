"""Edited worker code on the device of type "npu" that lies in host memory.

`python npu_worker_scenes.py SCENE` prints one JSON object for test_worker_on_npu.py.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from types import SimpleNamespace

import torch
import torch.distributed as dist
from host_triton import kernels
from npu_scenes import use_npu


def buffers() -> dict[str, object]:
    """Host buffers and their mirrors, and staged writes, with the kernel that applies them."""
    device = use_npu()
    from vllm.v1.worker.gpu import buffer_utils
    from vllm.v1.worker.gpu.states import RequestState

    pool = buffer_utils.UvaBufferPool(8, torch.int32)
    first, second, third = (pool.copy_to_uva(x) for x in ([1, 2, 3], torch.tensor([4]), [5]))
    host = pool._uva_bufs[0]
    backed = buffer_utils.UvaBackedTensor(4, torch.float32)
    backed.np[2] = 7
    before = backed.gpu.tolist()
    states = RequestState(4, 8, 16, 0, 100, device, torch.float32, False)
    states.add_request("a", 3, [10, 11, 12], 1)
    states.add_request("b", 2, [20, 21], 0)
    with kernels(buffer_utils, "_apply_write_kernel"):
        states.apply_staged_writes()
    written = states.all_token_ids.gpu
    return {
        "devices": [x.device.type for x in (first, host.cpu, backed.gpu, written)],
        "pinned": [host.cpu.is_pinned(), host.uva.is_pinned()],
        "pool": [first.tolist(), second.tolist(), third.tolist()],
        "same": [first.data_ptr() == third.data_ptr(), host.cpu.data_ptr() == host.uva.data_ptr()],
        "backed": [before, backed.copy_to_uva().tolist()],
        "tokens": written[2:].tolist(),
        "lengths": [states.prompt_len.gpu.tolist(), states.num_computed_tokens.gpu.tolist()],
        "host": states.num_computed_tokens_np.tolist(),
    }


class OnNpu(torch.nn.Parameter):
    """Says that it is on the device: unlike torch_npu's, real ones cannot be sent to the host."""

    device = torch.device("cpu")


def offload() -> dict[str, object]:
    """Weights on the host, of which vLLM once thought that the device could see them there."""
    device = use_npu()
    from vllm.model_executor.offloader.uva import UVAOffloader

    OnNpu.device = device
    layer = torch.nn.Linear(4, 3)
    x = torch.arange(8.0).view(2, 4)
    wanted = layer(x)
    for name, parameter in list(layer.named_parameters()):
        setattr(layer, name, OnNpu(parameter.data, requires_grad=False))
    offloader = UVAOffloader(1 << 20)
    (wrapped,) = offloader.wrap_modules(iter([layer]))
    output = wrapped(x.to(device)).as_subclass(torch.Tensor)
    return {
        "uva": offloader.uva_offloading,
        "pinned": wrapped.weight.is_pinned(),
        "bytes": offloader.cpu_offload_bytes,
        "output": [output.device.type, torch.allclose(output.cpu(), wanted)],
    }


def batches() -> dict[str, object]:
    """A dummy batch, slots, and a state copied within its block."""
    device = use_npu()
    from vllm.v1.worker import mamba_utils
    from vllm.v1.worker.gpu import block_table
    from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers

    shared = InputBuffers(8, 32, device)
    dummy = InputBatch.make_dummy(3, 8, shared)
    tables = block_table.BlockTables([128], 4, 32, 256, device)
    tables.block_tables[0].gpu[1] = torch.tensor([200001, 200003], dtype=torch.int32)
    memory = (tables.block_tables[0].gpu,)
    with kernels(block_table, "_compute_slot_mappings_kernel", memory=memory):
        slots = tables.compute_slot_mappings(
            torch.tensor([1], dtype=torch.int32, device=device),
            torch.tensor([0, 2], dtype=torch.int32, device=device),
            torch.tensor([127, 129], device=device),
            num_tokens_padded=4,
        )
    state = torch.arange(20000, device=device).to(torch.uint8)
    before = state.cpu()
    addresses = torch.tensor([state[96:].data_ptr(), state.data_ptr()], device=device)
    sizes = torch.tensor([16384], dtype=torch.int32, device=device)
    with kernels(mamba_utils, "batch_memcpy_kernel", memory=(state,)) as made:
        mamba_utils.batch_memcpy(addresses[:1], addresses[1:], sizes)
    return {
        "offsets": shared.query_start_loc.tolist(),
        "lengths": [dummy.seq_lens_cpu_upper_bound.device.type, dummy.seq_lens.tolist()],
        "slots": [slots.device.type, str(slots.dtype), slots.tolist()],
        "state": bool((state[:16384].cpu() == before[96 : 96 + 16384]).all()),
        "chunk": made["batch_memcpy_kernel"].launches[0][1]["BLOCK_SIZE"],
    }


def metadata() -> dict[str, object]:
    """Lengths for the plugin's class, of which one draft is known to the device only."""
    device = use_npu()
    import test_attn_metadata as kit

    import ascend_runtime.attn

    answers = {}
    for in_flight in (False, True):
        ascend_runtime.attn.register_metadata(kit.Extended, kit.State)
        group = kit.Group()
        group.vllm_config.speculative_config = SimpleNamespace(method="mtp")
        group.vllm_config.scheduler_config.async_scheduling = in_flight
        batch = kit.batch()
        for name in ("seq_lens", "query_start_loc", "positions"):
            setattr(batch, name, getattr(batch, name).to(device))
        batch.seq_lens_cpu_upper_bound += 1
        made = kit.prepare(batch, groups=[[group]])
        answers[str(in_flight)] = [
            type(made).__name__,
            made.seq_lens_cpu.device.type,
            made.seq_lens_cpu.tolist(),
            made.seq_lens.device.type,
            made.positions.device.type,
        ]
    return answers


def exchange() -> list[object]:
    """Two gloo ranks, which take no tensors of the device, exchange some."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, context.Pool(2) as pool:
        return pool.starmap(rank, [(number, f"{folder}/store") for number in range(2)])


def rank(number: int, store: str) -> list[object]:
    device = use_npu()
    dist.init_process_group("gloo", f"file://{store}", rank=number, world_size=2)
    from vllm.distributed.device_communicators.base_device_communicator import (
        DeviceCommunicatorBase,
    )

    communicator = DeviceCommunicatorBase(dist.group.WORLD, device, dist.group.WORLD)
    tensor = torch.arange(8, device=device).view(4, 2) + 100 * number
    got = communicator.all_to_all(tensor, 0, 1, [3, 1], [2, 2])
    dist.barrier()
    dist.destroy_process_group()
    return [got.device.type, got.tolist()]


SCENES = {scene.__name__: scene for scene in (buffers, offload, batches, metadata, exchange)}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
