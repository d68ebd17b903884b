"""Create tensors on the platform's device instead of "cuda".

Code that every platform runs names the device "cuda" in a dozen places:
rotary embeddings with dual chunks, the example KV connector, the
fastsafetensors loader, defaults of the n-gram proposer and of LoRA loading,
the EPLB device index, packed weight transfer, pinned bitmasks, Nemotron's
norm and the fallback of gated delta nets. Each asks the platform, or the
tensor at hand, now. On CUDA the values are what they were. Streams, events
and graphs of `torch.cuda` are another matter and not touched.

A default argument becomes None and is resolved at the call, so that no
default is fixed when a module is imported. fastsafetensors may still refuse
a device that it does not know.
"""

from rewriter.edits import In, Target, insert_before, replace, set_keyword, set_parameter
from rewriter.transform import Example, Transform, Upstream

DEVICE_TYPE = "current_platform.device_type"
PLATFORM = "from vllm.platforms import current_platform"
PINNED = "from vllm.utils.platform_utils import is_pin_memory_available"
RESOLVE = f"if device is None:\n    device = {DEVICE_TYPE}"
LORA = "vllm/lora/lora_model.py"
NGRAM = "vllm/v1/spec_decode/ngram_proposer_gpu.py"
PACKED = "vllm/distributed/weight_transfer/packed_tensor.py"
NEMOTRON = "vllm/model_executor/models/nemotron.py"


def pinned_bitmask(file: str, backend: str) -> Target:
    """Pin the grammar bitmask where the platform can pin memory."""
    return In(f"vllm/v1/structured_output/{file}.py", f"{backend}.allocate_token_bitmask").do(
        set_keyword(
            "torch.full(...)",
            was="torch.cuda.is_available()",
            pin_memory="is_pin_memory_available()",
        ),
        imports=PINNED,
    )


def packed(function: str, count: int) -> Target:
    """Make the buffers of packed weight transfer on the platform's device."""
    empty = set_keyword("torch.empty(...)", was='"cuda"', device=DEVICE_TYPE, count=count)
    return In(PACKED, function).do(empty, imports=PLATFORM)


TRANSFORM = Transform(
    seed="worker/15",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("device neutral"),
    remove_when="upstream asks the platform in each of these places",
    edits=[
        In(
            "vllm/model_executor/layers/rotary_embedding/dual_chunk_rope.py",
            "DualChunkRotaryEmbedding.__init__",
        ).do(
            replace(
                'torch.device(f"cuda:{device_idx}")', f"torch.device({DEVICE_TYPE}, device_idx)"
            ),
            imports=PLATFORM,
        ),
        In(
            "vllm/model_executor/model_loader/weight_utils.py", "fastsafetensors_weights_iterator"
        ).do(
            replace(
                'torch.device(f"cuda:{current_platform.current_device()}")',
                f"torch.device({DEVICE_TYPE}, current_platform.current_device())",
            ),
        ),
        In(
            "vllm/distributed/kv_transfer/kv_connector/v1/example_connector.py",
            "ExampleConnector.start_load_kv",
        ).do(
            replace(
                'safetensors.torch.load_file(filename)["kv_cache"].cuda()',
                'safetensors.torch.load_file(filename)["kv_cache"].to(kv_cache_layer.device)',
            ),
        ),
        In("vllm/distributed/eplb/eplb_state.py", "EplbState.__init__").do(
            replace('self.device.type == "cuda"', 'self.device.type != "cpu"'),
            replace("torch.cuda.is_available()", "torch.accelerator.is_available()"),
        ),
        In(NGRAM, "NgramGPUKernel.__init__").do(
            set_parameter(
                "device: torch.device | None = None", was='device: torch.device = "cuda"'
            ),
            replace("self.device = device", f"self.device = device or {DEVICE_TYPE}"),
            imports=PLATFORM,
        ),
        In(NGRAM, "NgramProposerGPU._generate_dummy_data").do(
            set_parameter("device: str | None = None", was='device: str = "cuda"'),
            insert_before(
                "token_ids = torch.zeros(batch_size, max_seq_len, ..., device=device)",
                RESOLVE,
            ),
            imports=PLATFORM,
        ),
        In(LORA, "LoRAModel.from_lora_tensors").do(
            set_parameter("device: str | None = None", was='device: str = "cuda"'),
            insert_before(
                'pin_memory = str(device) == "cpu" and is_pin_memory_available()', RESOLVE
            ),
            imports=PLATFORM,
        ),
        In(LORA, "LoRAModel.from_local_checkpoint").do(
            set_parameter("device: str | None = None", was='device: str = "cuda"'),
            insert_before(
                'lora_tensor_path = os.path.join(lora_dir, "adapter_model.safetensors")', RESOLVE
            ),
            imports=PLATFORM,
        ),
        packed("packed_broadcast_producer", 1),
        packed("packed_broadcast_consumer", 3),
        pinned_bitmask("backend_outlines", "OutlinesBackend"),
        pinned_bitmask("backend_lm_format_enforcer", "LMFormatEnforcerBackend"),
        In(NEMOTRON, "_cast_if_autocast_enabled").do(
            set_keyword(
                "torch.amp.autocast_mode._cast(...)",
                was='"cuda"',
                device_type="args[0].device.type",
            ),
        ),
        In(NEMOTRON, "NemotronLayerNorm1P.forward").do(
            replace(
                'torch.amp.autocast("cuda", enabled=False)',
                "torch.amp.autocast(x.device.type, enabled=False)",
            ),
        ),
        In("vllm/model_executor/layers/fla/ops/chunk.py", "ChunkGatedDeltaRuleFunction.forward").do(
            set_keyword("torch.amp.custom_fwd(...)", was='"cuda"', device_type=DEVICE_TYPE),
            imports=PLATFORM,
        ),
        In("vllm/v1/worker/gpu_model_runner.py", "GPUModelRunner.load_model").do(
            replace("torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError"),
        ),
    ],
    examples=[
        Example(
            LORA,
            before='''\
import torch

from vllm.lora.peft_helper import PEFTHelper


class LoRAModel:
    @classmethod
    def from_lora_tensors(cls, tensors, device: str = "cuda", dtype=None):
        """Create a LoRAModel from a dictionary of tensors."""
        pin_memory = str(device) == "cpu" and is_pin_memory_available()
        return cls(tensors, device, pin_memory)

    @classmethod
    def from_local_checkpoint(cls, lora_dir, *, device: str = "cuda"):
        lora_tensor_path = os.path.join(lora_dir, "adapter_model.safetensors")
        return cls.from_lora_tensors(lora_tensor_path, device=device)
''',
            after='''\
import torch

from vllm.lora.peft_helper import PEFTHelper
from vllm.platforms import current_platform


class LoRAModel:
    @classmethod
    def from_lora_tensors(cls, tensors, device: str | None = None, dtype=None):
        """Create a LoRAModel from a dictionary of tensors."""
        if device is None:
            device = current_platform.device_type
        pin_memory = str(device) == "cpu" and is_pin_memory_available()
        return cls(tensors, device, pin_memory)

    @classmethod
    def from_local_checkpoint(cls, lora_dir, *, device: str | None = None):
        if device is None:
            device = current_platform.device_type
        lora_tensor_path = os.path.join(lora_dir, "adapter_model.safetensors")
        return cls.from_lora_tensors(lora_tensor_path, device=device)
''',
        ),
        Example(
            NEMOTRON,
            before="""\
class NemotronLayerNorm1P:
    def forward(self, x):
        with torch.amp.autocast("cuda", enabled=True):
            return x
""",
            after=None,
        ),
    ],
)
