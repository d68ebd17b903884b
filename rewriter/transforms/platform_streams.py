"""Take streams and events from the platform instead of `torch.cuda`.

Code that every platform runs makes its streams and events, and asks for the
current stream and the free memory, through `torch.cuda`: both model runners,
asynchronous EPLB, packed weight transfer, prefetched and offloaded weights
and KV caches, drafts. Without CUDA each such call raises, and a plugin can
only overwrite `torch.cuda` for the whole process. The platform hands these
names on to the module of its own device, and is asked now. On CUDA and ROCm
they are those of `torch.cuda`, as before, with vLLM's own `set_stream`. XPU
and CPU get what their runners put into `torch.cuda` to this end.

Four places need more. Capturing a graph insisted on CUDA's communicator:
custom allreduce is now joined where there is one. Asynchronous sends
between pipeline stages kept the memory of CUDA tensors only, and copies of
KV blocks waited for the model only if these were CUDA's; any device's count
now. `current_stream()` kept the first stream that it saw where switching
streams is not tracked; there it asks each time now.

Known limits: graphs and `set_stream` have an edit of their own. DBO, the
NCCL and IPC engines of weight transfer, and the worker's own start, which
platforms bring themselves, are not touched.
"""

from rewriter.edits import In, Target, insert_before, replace
from rewriter.transform import Example, Transform, Upstream

PLATFORM = "from vllm.platforms import current_platform"
STATE = "vllm/distributed/parallel_state.py"
EPLB = "vllm/distributed/eplb/eplb_state.py"
RUNNER = "vllm/v1/worker/gpu_model_runner.py"
V2 = "vllm/v1/worker/gpu"
GRAMMAR = f"{V2}/structured_outputs.py"
PREFETCH = "vllm/model_executor/offloader/prefetch.py"
KV_COPY = "vllm/v1/kv_offload/worker/cpu_gpu.py"
PACKED = "vllm/distributed/weight_transfer/packed_tensor.py"
COPY = {"current_stream()": 1, "stream": 1}
ASSERTED = """
if self.device_communicator is not None:
    assert isinstance(self.device_communicator, CudaCommunicator)
    ca_comm = self.device_communicator.ca_comm
    if ca_comm is not None:
        maybe_ca_context = ca_comm.capture()
"""
ASKED = """
# Custom allreduce is CUDA's only, so it is not abstracted into the base class.
maybe_ca_context = nullcontext()
ca_comm = getattr(self.device_communicator, "ca_comm", None)
if ca_comm is not None:
    maybe_ca_context = ca_comm.capture()  # type: ignore
"""
CUDA_ONLY = """
maybe_ca_context = nullcontext()
from vllm.distributed.device_communicators.cuda_communicator import CudaCommunicator
"""
RECORDED = """
if tensor.is_cuda:
    tensor.record_stream(torch.cuda.current_stream(tensor.device))
"""
RECORDS = """
if not tensor.is_cpu:
    tensor.record_stream(current_platform.current_stream(tensor.device))
"""
TRACKED = "_current_stream_tls.value = current_stream()"


def moved(file: str, scope: str, places: dict[str, int], imports: str = PLATFORM) -> Target:
    """Replace names of `torch.cuda`, each so many times in the scope, by the platform's."""
    edits = [
        replace(f"torch.cuda.{name}", f"current_platform.{name}", count=count)
        for name, count in places.items()
    ]
    return In(file, scope).do(*edits, imports=imports)


TRANSFORM = Transform(
    seed="worker/15",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("device neutral"),
    remove_when="upstream asks the platform in each of these places",
    edits=[
        # Importing the platform with the module would resolve it while it is being resolved.
        In(STATE, "GroupCoordinator.graph_capture").do(
            insert_before(
                "if graph_capture_context is None:\n"
                "    stream = ...\n"
                "    graph_capture_context = GraphCaptureContext(stream)\n"
                "else:\n"
                "    stream = graph_capture_context.stream",
                f"{PLATFORM}\n",
            ),
            replace("torch.cuda.Stream()", "current_platform.Stream()"),
            replace(CUDA_ONLY + ASSERTED, ASKED, with_comments=True),
            replace("torch.cuda.current_stream()", "current_platform.current_stream()"),
            replace("torch.cuda.stream", "current_platform.stream"),
        ),
        In(STATE, "GroupCoordinator.isend_tensor_dict").do(
            insert_before(
                "all_gather_size = 1 if all_gather_group is None else all_gather_group.world_size",
                f"{PLATFORM}\n",
            ),
            replace(RECORDED, RECORDS),
        ),
        In(STATE, "graph_capture").do(
            insert_before("context = GraphCaptureContext(...)", f"{PLATFORM}\n"),
            replace("torch.cuda.Stream", "current_platform.Stream"),
        ),
        In("vllm/utils/torch_utils.py", "current_stream").do(
            replace(TRACKED, "return current_stream()"),
        ),
        moved(EPLB, "EplbState.rearrange", {"Event": 3}),
        moved(EPLB, "EplbState.move_to_workspace", {"current_stream": 1, "Event": 1}),
        moved("vllm/distributed/eplb/async_worker.py", "start_async_worker", {"Stream": 1}),
        In("vllm/distributed/eplb/async_worker.py", "transfer_run_periodically").do(
            # What it says is the default, and not every device's events know the argument.
            replace("torch.cuda.Event(blocking=False)", "current_platform.Event()"),
            imports=PLATFORM,
        ),
        moved("vllm/distributed/eplb/rebalance_execute.py", "move_to_buffer", {"stream": 1}),
        moved(PACKED, "packed_broadcast_producer", {"Stream": 1, "stream": 1}),
        moved(PACKED, "packed_broadcast_consumer", {"Stream": 1, "stream": 1}),
        In(KV_COPY, "SingleDirectionOffloadingHandler.__init__").do(
            replace("self.src_tensors[0].is_cuda", "not self.src_tensors[0].is_cpu"),
        ),
        moved(
            KV_COPY,
            "SingleDirectionOffloadingHandler.transfer_async",
            {"Stream()": 1, **COPY},
        ),
        moved(PREFETCH, "PrefetchOffloader.__init__", {"Stream": 1}),
        moved(
            PREFETCH,
            "PrefetchOffloader._wait_for_layer",
            {"is_current_stream_capturing": 1, "current_stream": 3},
        ),
        moved(PREFETCH, "PrefetchOffloader.sync_prev_onload", {"current_stream": 1}),
        moved(PREFETCH, "PrefetchOffloader.join_after_forward", {"current_stream": 1}),
        moved(PREFETCH, "_ModuleOffloader.__init__", {"Event()": 1}),
        moved(
            PREFETCH,
            "_ModuleOffloader.start_onload_to_static",
            {"is_current_stream_capturing": 2, "Event": 1, **COPY},
        ),
        moved(
            "vllm/model_executor/layers/fused_moe/runner/default_moe_runner.py",
            "DefaultMoERunner.forward_impl",
            {"stream": 1},
        ),
        moved("vllm/v1/spec_decode/ngram_proposer_gpu.py", "copy_num_valid_draft_tokens", COPY),
        moved(RUNNER, "AsyncGPUModelRunnerOutput.__init__", COPY),
        moved(RUNNER, "AsyncGPUPoolingModelRunnerOutput.__init__", COPY),
        moved(RUNNER, "GPUModelRunner.__init__", {"Stream()": 5, "Event()": 1}),
        moved(RUNNER, "GPUModelRunner._copy_draft_token_ids_to_cpu", COPY),
        moved(RUNNER, "GPUModelRunner._copy_valid_sampled_token_count", COPY),
        moved(RUNNER, "GPUModelRunner.profile_cudagraph_memory", {"mem_get_info": 2}),
        moved(RUNNER, "GPUModelRunner.capture_model", {"mem_get_info": 2}),
        moved(f"{V2}/model_runner.py", "GPUModelRunner.__init__", {"Stream": 1, "Event": 1}),
        moved(f"{V2}/model_runner.py", "GPUModelRunner.main_stream", {"current_stream": 1}),
        moved(f"{V2}/model_runner.py", "GPUModelRunner.capture_model", {"mem_get_info": 2}),
        moved(GRAMMAR, "StructuredOutputsWorker.__init__", {"Stream()": 1}),
        moved(
            GRAMMAR,
            "StructuredOutputsWorker.apply_grammar_bitmask",
            {"stream": 2, "current_stream": 1},
        ),
        moved(
            f"{V2}/spec_decode/utils.py", "DraftTokensHandler.__init__", {"Stream": 1, "Event": 1}
        ),
        moved(
            f"{V2}/spec_decode/utils.py",
            "DraftTokensHandler.set_draft_tokens",
            {"current_stream": 1, "stream": 1},
        ),
        moved(
            f"{V2}/spec_decode/eagle/cudagraph.py",
            "EagleCudaGraphManager.__init__",
            {"graph_pool_handle": 1},
        ),
    ],
    examples=[
        Example(
            GRAMMAR,
            before="""\
import torch

from vllm.utils.math_utils import cdiv


class StructuredOutputsWorker:
    def __init__(self):
        self.copy_stream: torch.cuda.Stream = torch.cuda.Stream()

    def apply_grammar_bitmask(self, bitmask, mapping):
        with torch.cuda.stream(self.copy_stream):
            bitmask.copy()
        with torch.cuda.stream(self.copy_stream):
            mapping.copy()
        current_stream = torch.cuda.current_stream()
        current_stream.wait_stream(self.copy_stream)
""",
            after="""\
import torch

from vllm.platforms import current_platform
from vllm.utils.math_utils import cdiv


class StructuredOutputsWorker:
    def __init__(self):
        self.copy_stream: torch.cuda.Stream = current_platform.Stream()

    def apply_grammar_bitmask(self, bitmask, mapping):
        with current_platform.stream(self.copy_stream):
            bitmask.copy()
        with current_platform.stream(self.copy_stream):
            mapping.copy()
        current_stream = current_platform.current_stream()
        current_stream.wait_stream(self.copy_stream)
""",
        ),
        Example(
            "vllm/v1/spec_decode/ngram_proposer_gpu.py",
            before="""\
def copy_num_valid_draft_tokens(stream: torch.cuda.Stream, event: torch.cuda.Event):
    stream.wait_stream(stream)
    event.record()
""",
            after=None,
        ),
    ],
)
