"""Code that makes streams and events, on the device of type "npu" that lies in host memory.

`python npu_stream_scenes.py SCENE` prints one JSON object for test_platform_streams.py. Work on
this device is done at once, so the scenes tell which stream it was given to.
"""

from __future__ import annotations

import json
import sys
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import torch
from npu_scenes import use_npu


def current() -> int:
    return torch.npu.current_stream().stream_id


@contextmanager
def waits():
    """The pairs of streams of which one was told to wait for the other."""
    seen, wait = [], torch.Stream.wait_stream
    torch.npu.Stream.wait_stream = lambda mine, other: (
        seen.append([mine.stream_id, other.stream_id]),
        wait(mine, other),
    )[1]
    try:
        yield seen
    finally:
        del torch.npu.Stream.wait_stream


def packed() -> dict[str, object]:
    """Weights that go through two buffers of 20 bytes and come out as they went in."""
    device = use_npu()
    from vllm.distributed.weight_transfer import packed_tensor

    weights = {
        "a": torch.arange(6, dtype=torch.float32).view(2, 3),
        "b": torch.tensor([1 << 40]),
        "c": torch.tensor([1.5, -2.0]),
        "d": torch.tensor([[1.0], [2.0], [-3.0]], dtype=torch.bfloat16),
        "e": torch.tensor([7], dtype=torch.int32),
    }
    wire, loaded, streams, kinds = [], {}, [], set()

    class Group:
        def __init__(self, sends: bool) -> None:
            self.sends = sends

        def broadcast(self, tensor: torch.Tensor, src: int) -> None:
            streams.append(current())
            kinds.add((tensor.device.type, str(tensor.dtype), src))
            if self.sends:
                wire.append(tensor.cpu())
            else:
                tensor.copy_(wire[len(streams) - len(wire) - 1])

    def load(items: list[tuple[str, torch.Tensor]]) -> None:
        loaded.update({name: (str(t.dtype), t.device.type, t.cpu()) for name, t in items})

    packed_tensor.packed_broadcast_producer(
        iter(weights.items()), Group(True), 3, lambda item: item[1].to(device), 20, 2
    )
    facts = {name: (list(w.shape), w.dtype) for name, w in weights.items()}
    packed_tensor.packed_broadcast_consumer(iter(facts.items()), Group(False), 3, load, 20, 2)
    return {
        "bytes": [len(part) for part in wire],
        "kinds": sorted(kinds),
        "streams": [streams.index(s) for s in streams],
        "own": current() not in streams,
        "same": {
            name: (kind, where) == (str(weights[name].dtype), "npu")
            and torch.equal(values, weights[name])
            for name, (kind, where, values) in loaded.items()
        },
    }


def drafts() -> dict[str, object]:
    """Drafts, their counts and a grammar's bitmask."""
    device = use_npu()
    from vllm.v1.spec_decode.ngram_proposer_gpu import copy_num_valid_draft_tokens
    from vllm.v1.worker.gpu import structured_outputs
    from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

    batch = SimpleNamespace(
        req_ids=["x", "y"],
        has_structured_output_reqs=True,
        cu_num_logits_np=torch.tensor([0, 2, 3]),
    )
    handler = DraftTokensHandler(device)
    worker = structured_outputs.StructuredOutputsWorker(4, 64, device)
    launched = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, int]):
            return lambda logits, _, rows, mask, *rest, **options: launched.append(
                [list(grid), rows.tolist(), mask.tolist(), rows.device.type, current()]
            )

    structured_outputs._apply_grammar_bitmask_kernel = Kernel()
    structured_outputs.triton = SimpleNamespace(cdiv=lambda a, b: -(-a // b))
    counts, stream = torch.zeros(4, dtype=torch.int32), torch.npu.Stream()
    with waits() as seen:
        handler.set_draft_tokens(batch, torch.tensor([[1, 2], [3, 4]], device=device))
        copy_num_valid_draft_tokens(
            counts, stream, torch.npu.Event(), torch.tensor([5, 6, 7], device=device), 2
        )
        worker.apply_grammar_bitmask(
            torch.zeros(3, 64, device=device),
            batch,
            ["y", "x"],
            torch.tensor([[1, 2], [3, 4], [5, 6]], dtype=torch.int32).numpy(),
        )
    host, copies = current(), [handler.copy_stream, stream, worker.copy_stream]
    ids = [s.stream_id for s in copies]
    return {
        "drafts": handler.get_draft_tokens().draft_token_ids,
        "counts": counts.tolist(),
        "kernel": [*launched[0][:4], launched[0][4] == host],
        "types": [type(s) is torch.npu.Stream for s in copies],
        "event": [isinstance(handler.copy_event, torch.npu.Event), handler.copy_event.device.type],
        "waits": [[("host", *ids).index(i if i != host else "host") for i in p] for p in seen],
    }


def outputs() -> dict[str, object]:
    """What the first model runner copies to the host."""
    device = use_npu()
    from vllm.v1.worker import gpu_model_runner as module

    stream = torch.npu.Stream()
    with waits() as seen:
        sampled = module.AsyncGPUModelRunnerOutput(
            SimpleNamespace(), torch.tensor([[5], [6]], device=device), None, [1], stream, 9
        )
        pooled = module.AsyncGPUPoolingModelRunnerOutput(
            SimpleNamespace(), [torch.tensor([1.0], device=device)] * 2, [True, False], stream
        )
        stub = SimpleNamespace(
            use_async_scheduling=False,
            input_batch=SimpleNamespace(req_ids=["x"], prev_sampled_token_ids=None),
            _draft_token_ids=torch.tensor([[8, 9]], device=device),
            draft_token_ids_event=torch.Event(),
            draft_token_ids_copy_stream=stream,
            draft_token_ids_cpu=torch.zeros(2, 2, dtype=torch.int64),
            valid_sampled_token_count_event=torch.Event(),
            valid_sampled_token_count_copy_stream=stream,
            valid_sampled_token_count_cpu=torch.zeros(2, dtype=torch.int64),
        )
        runner = module.GPUModelRunner
        runner._copy_draft_token_ids_to_cpu(stub, SimpleNamespace())
        runner._copy_valid_sampled_token_count(
            stub, torch.tensor([4], device=device), torch.tensor([3], device=device)
        )
    return {
        "sampled": sampled.get_output().sampled_token_ids,
        "pooled": [x if x is None else x.tolist() for x in pooled.get_output().pooler_output],
        "drafts": stub.draft_token_ids_cpu.tolist(),
        "counts": stub.valid_sampled_token_count_cpu.tolist(),
        "waits": [pair == [stream.stream_id, current()] for pair in seen],
    }


def offload() -> dict[str, object]:
    """Copies of KV blocks in both directions."""
    device = use_npu()
    from vllm.v1.kv_offload.mediums import CPULoadStoreSpec, GPULoadStoreSpec
    from vllm.v1.kv_offload.worker import cpu_gpu

    copied = []

    def swap(source, target, size, pairs) -> None:
        copied.append([source.device.type, target.device.type, size, current() != host])
        for a, b in pairs.tolist():
            target[b] = source[a].to(target.device)

    cpu_gpu.ops = SimpleNamespace(swap_blocks=swap)
    cache = torch.arange(12.0, device=device).view(4, 3)
    kept, host = torch.zeros(4, 3), current()
    with waits() as seen:
        stores = cpu_gpu.SingleDirectionOffloadingHandler([cache], [kept], 1, 1)
        stores.transfer_async(1, (GPULoadStoreSpec([1, 3]), CPULoadStoreSpec([0, 2])))
        stored = stores.get_finished()
        loads = cpu_gpu.SingleDirectionOffloadingHandler([kept], [cache], 1, 1)
        loads.transfer_async(2, (CPULoadStoreSpec([2]), GPULoadStoreSpec([0])))
        loaded = loads.get_finished()
    return {
        "copied": copied,
        "types": [list(r.transfer_type) for r in (*stored, *loaded)],
        "kept": kept.tolist(),
        "cache": cache[0].tolist(),
        "waits": [pair[1] == host for pair in seen],
    }


def prefetch() -> dict[str, object]:
    """Three layers whose weights come from the host one layer ahead."""
    device = use_npu()
    torch.npu.is_current_stream_capturing = lambda: False
    from vllm.model_executor.offloader import prefetch as module

    layers = [torch.nn.Linear(2, 2, bias=False) for _ in range(3)]
    x = torch.tensor([[1.0, 2.0]])
    wanted = layers[2](layers[1](layers[0](x)))
    hosts = [layer.weight.detach().clone() for layer in layers]

    class Parameter:
        """In place of the class that keeps weights on the host: real ones leave the device."""

        def __init__(self, host: torch.Tensor, layer: torch.nn.Linear) -> None:
            self._cpu_storage, self._gpu_buffer = host.pin_memory(), torch.zeros(2, 2).to(device)
            layer.weight = torch.nn.Parameter(self._gpu_buffer, requires_grad=False)

    for layer in layers:
        layer.to(device)
    offloader = module.PrefetchOffloader(1, 1, 1, {"none"})
    used = []
    for index, layer in enumerate(layers):
        made = module._ModuleOffloader("cpu", layer, offloader.copy_stream, [], index)
        made._param_offloaders = {"weight": Parameter(hosts[index], layer)}
        made._buffer_pool = object()
        offloader.module_offloaders.append(made)
    offloader._start_prefetch(0)
    y = x.to(device)
    for index, layer in enumerate(layers):
        offloader._wait_for_layer(index)
        if index < 2:
            offloader._start_prefetch(index + 1)
        y = layer(y)
        used.append(offloader.module_offloaders[index]._event_valid_for_eager)
    offloader.sync_prev_onload()
    offloader.join_after_forward()
    return {
        "same": torch.allclose(y.cpu(), wanted),
        "stream": type(offloader.copy_stream) is torch.npu.Stream,
        "event": offloader.module_offloaders[0]._copy_done_event.device.type,
        "used": used,
        "copies": offloader.copy_stream.stream_id != current(),
    }


def experts() -> dict[str, object]:
    """The thread of asynchronous EPLB, and the layer that it hands over."""
    use_npu()
    device = torch.device("npu", 1)
    from vllm.distributed.eplb import async_worker, eplb_state

    answers = {}

    async def transfer(cuda_stream: torch.Stream, **rest: object) -> None:
        answers["thread"] = [
            type(cuda_stream) is torch.npu.Stream,
            str(cuda_stream.device),
            torch.npu.current_device(),
            threading.current_thread() is not threading.main_thread(),
        ]

    async_worker.transfer_run_periodically = transfer
    async_worker.get_eplb_group = lambda: SimpleNamespace(
        device_group=SimpleNamespace(rank=lambda: 0)
    )
    config = SimpleNamespace(eplb_config=SimpleNamespace())
    state = eplb_state.EplbState(config, device)
    state.is_async = True
    async_worker.start_async_worker(state).join(60)
    ready = torch.npu.Event()
    ready.record()
    layer = SimpleNamespace(
        buffer_lock=threading.Lock(),
        new_physical_to_logical_map=torch.zeros(2, 2),
        cuda_device_index=1,
        buffer_ready_event=ready,
        buffer_consumed_event=None,
        layer_to_transfer=0,
        model=SimpleNamespace(expert_weights=[[], []], num_moe_layers=2),
        model_name="m",
        ep_buffer_ready=1,
    )
    for name in ("expert_buffer", "is_unchanged", "is_received_locally", "recv_metadata"):
        setattr(layer, name, None)
    eplb_state.move_from_buffer = lambda **given: answers.update(moved=given["ep_rank"])
    state._update_layer_mapping_from_new = lambda *given: None
    state.move_to_workspace(layer, SimpleNamespace(rank=lambda: 5))
    event = layer.buffer_consumed_event
    answers["layer"] = [layer.layer_to_transfer, layer.ep_buffer_ready, layer.buffer_ready_event]
    answers["consumed"] = [isinstance(event, torch.npu.Event), event.query()]
    return answers


def groups() -> dict[str, object]:
    """Capturing on a stream of its own, sending, and the stream that is the current one."""
    device = use_npu()
    from vllm.distributed import parallel_state
    from vllm.utils.torch_utils import current_stream

    host, answers, kept = current(), {}, []
    capture = parallel_state.GroupCoordinator.graph_capture
    with waits() as seen:
        with capture(SimpleNamespace(device_communicator=object())) as context:
            answers["capture"] = current() == context.stream.stream_id != host
        with parallel_state.GroupCoordinator.graph_capture(
            SimpleNamespace(device_communicator=None), context
        ) as again:
            answers["given"] = again is context and current() == context.stream.stream_id
    answers["waits"] = [pair == [context.stream.stream_id, host] for pair in seen]
    torch.Tensor.record_stream = lambda t, s: kept.append([t.tolist(), s.stream_id == host])
    torch.distributed.isend = lambda tensor, dst, group: [tensor.device.type, dst, group]
    stub = SimpleNamespace(
        world_size=2,
        rank_in_group=0,
        use_cpu_custom_send_recv=False,
        device_group="device",
        cpu_group="host",
        ranks=[4, 6],
        send_object=lambda *given, **named: None,
        _should_use_all_gather=lambda *given: False,
    )
    tensors = {"a": torch.tensor([1, 2], device=device), "b": torch.tensor([3])}
    send = parallel_state.GroupCoordinator.isend_tensor_dict
    answers["sent"] = send(stub, tensors)
    answers["kept"] = kept
    first, mine = current_stream(), torch.npu.Stream()
    with torch.npu.stream(mine):
        answers["current"] = [current_stream() == mine, current_stream() != first]
    answers["back"] = current_stream() == first
    return answers


def switch() -> dict[str, object]:
    """What the second model runner copies to the host, and a graph that it captures."""
    device = use_npu()
    from vllm.v1.worker.gpu import async_utils, cudagraph_utils

    log, host = [], torch.npu.current_stream()
    result = SimpleNamespace(req_ids=["x", "y"], prompt_logprobs_dict={"x": None})
    sampled = SimpleNamespace(
        sampled_token_ids=torch.tensor([[5, 6], [7, 8]], device=device),
        logprobs_tensors=None,
        num_nans=None,
    )
    copy, real = torch.npu.Stream(), async_utils.async_copy_to_np
    async_utils.async_copy_to_np = lambda x: (log.append(current()), real(x))[1]
    counts = torch.tensor([2, 1], device=device)
    output = async_utils.AsyncOutput(result, sampled, counts, host, copy, torch.npu.Event())
    graphs, mode = [], cudagraph_utils.CUDAGraphMode

    @contextmanager
    def record(graph: object, pool: object = None):
        graphs.append(["in", type(graph) is torch.npu.NPUGraph, pool])
        yield
        graphs.append("out")

    torch.npu.NPUGraph, torch.npu.graph = type("NPUGraph", (), {}), record
    cudagraph_utils.is_global_first_rank = lambda: False
    cudagraph_utils.graph_capture = lambda device: record(None)
    desc = cudagraph_utils.BatchExecutionDescriptor(mode.FULL, 2, 2)
    manager = SimpleNamespace(
        device=device, _capture_descs={mode.FULL: [desc]}, graphs={}, pool="pool"
    )
    cudagraph_utils.CudaGraphManager.capture(manager, lambda d: lambda m: graphs.append(m.name))
    return {
        "tokens": output.get_output().sampled_token_ids,
        "copies": [stream == copy.stream_id for stream in log],
        "back": current() == host.stream_id != copy.stream_id,
        "graphs": graphs,
        "kept": type(manager.graphs[desc]).__name__,
    }


SCENES = {
    scene.__name__: scene
    for scene in (packed, drafts, outputs, offload, prefetch, experts, groups, switch)
}

if __name__ == "__main__":
    print(json.dumps(SCENES[sys.argv[1]]()))
