"""Send memory calls to torch.npu where torch.accelerator cannot answer.

vLLM asks `torch.accelerator` for memory statistics and to empty its cache.
torch.accelerator asks the device's allocator, and that of torch_npu 2.9 and
2.10 does not have what it takes, so every call raises. The edits exchange
the callee at the 22 places that are not of another platform.
`ascend_runtime.accel_mem` goes to `torch.npu` for as long as the allocator
cannot answer (torch_npu 2.13's can), and to `torch.accelerator` on every
other device.

During graph capture vLLM replaces `torch.accelerator.empty_cache` by a
no-op; now it replaces the new callee too.

Left alone: the XPU worker, and the peak that the model loader logs on CUDA.
"""

from rewriter.edits import In, Target, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

GRAPH = "vllm/compilation/cuda_graph.py"


def calls(path: str, scope: str, **counts: int) -> Target:
    """Exchange the callee of so many calls of each name."""
    edits = [
        replace(f"torch.accelerator.{name}", f"ascend_runtime.accel_mem.{name}", count=count)
        for name, count in counts.items()
    ]
    return In(f"vllm/{path}.py", scope).do(*edits)


QUARK = "model_executor/layers/quantization/quark/quark_moe"
RUNNER = "v1/worker/gpu_model_runner"
LOAD = "process_weights_after_loading"

TRANSFORM = Transform(
    seed=(),
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("torch_npu has to answer, and from 2.13 on it does"),
    remove_when="no torch_npu before 2.13 is supported",
    monkey_patch_lines=16,
    edits=[
        calls(
            "distributed/elastic_ep/elastic_execute",
            "ElasticEPScalingExecutor.switch_and_prepare",
            empty_cache=1,
        ),
        calls("distributed/parallel_state", "cleanup_dist_env_and_memory", empty_cache=1),
        calls(
            "model_executor/layers/fused_moe/unquantized_fused_moe_method",
            "UnquantizedFusedMoEMethod._maybe_pad_weight",
            empty_cache=1,
        ),
        calls(QUARK, f"QuarkOCP_MX_MoEMethod.{LOAD}", empty_cache=2),
        calls(QUARK, f"QuarkOCP_MX_MoEMethod_OSS.{LOAD}", empty_cache=1),
        calls(
            "model_executor/layers/quantization/utils/fp8_utils",
            "_maybe_pad_fp8_weight",
            empty_cache=1,
        ),
        calls(
            "model_executor/model_loader/bitsandbytes_loader",
            "BitsAndBytesModelLoader.load_weights",
            empty_cache=1,
        ),
        calls(
            "model_executor/models/qwen3_next",
            "Qwen3NextGatedDeltaNet._warmup_prefill_kernels",
            empty_cache=1,
        ),
        calls("utils/mem_utils", "MemorySnapshot.measure", memory_stats=1, memory_reserved=1),
        calls("utils/mem_utils", "memory_profiling", empty_cache=2, reset_peak_memory_stats=1),
        calls("v1/sample/ops/topk_topp_triton", "reset_buffer_cache", empty_cache=1),
        calls("v1/worker/gpu/model_runner", "GPUModelRunner.capture_model", empty_cache=1),
        calls(RUNNER, "GPUModelRunner._cleanup_profiling_kv_cache", empty_cache=1),
        calls(RUNNER, "GPUModelRunner.profile_cudagraph_memory", empty_cache=1),
        calls(RUNNER, "GPUModelRunner.capture_model", empty_cache=2),
        calls("v1/worker/gpu_worker", "Worker.init_device", empty_cache=1),
        calls("v1/worker/gpu_worker", "Worker.determine_available_memory", memory_stats=1),
        In(GRAPH, "CUDAGraphWrapper.__call__").do(
            insert_after(
                'stack.enter_context(patch("torch.accelerator.empty_cache", lambda: None))',
                """
stack.enter_context(
    patch("ascend_runtime.accel_mem.empty_cache", lambda: None)
)
""",
            ),
        ),
    ],
    examples=[
        Example(
            "vllm/utils/mem_utils.py",
            before="""\
import torch


class MemorySnapshot:
    def measure(self):
        # rather than `torch.accelerator.memory_reserved()`
        self.torch_peak = torch.accelerator.memory_stats(device).get("peak", 0)
        self.torch_memory = torch.accelerator.memory_reserved(device)
        torch.accelerator.synchronize()


def memory_profiling(baseline_snapshot):
    torch.accelerator.empty_cache()
    torch.accelerator.reset_peak_memory_stats(baseline_snapshot.device_)
    yield
    torch.accelerator.empty_cache()
""",
            after="""\
import ascend_runtime.accel_mem
import torch


class MemorySnapshot:
    def measure(self):
        # rather than `torch.accelerator.memory_reserved()`
        self.torch_peak = ascend_runtime.accel_mem.memory_stats(device).get("peak", 0)
        self.torch_memory = ascend_runtime.accel_mem.memory_reserved(device)
        torch.accelerator.synchronize()


def memory_profiling(baseline_snapshot):
    ascend_runtime.accel_mem.empty_cache()
    ascend_runtime.accel_mem.reset_peak_memory_stats(baseline_snapshot.device_)
    yield
    ascend_runtime.accel_mem.empty_cache()
""",
        ),
        Example(
            "vllm/v1/sample/ops/topk_topp_triton.py",
            before="""\
def reset_buffer_cache():
    torch.accelerator.empty_host_cache()
""",
            after=None,
        ),
    ],
)
