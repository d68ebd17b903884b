"""The platform: what vLLM asks of a device, answered for torch on the CPU."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import psutil
import torch
from vllm.platforms.interface import Platform, PlatformEnum

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.attention.selector import AttentionSelectorConfig


class TorchPlatform(Platform):
    """An out-of-tree platform; its devices are torch's "cpu"."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    device_control_env_var = "CPU_VISIBLE_MEMORY_NODES"
    worker = "torch_platform.worker.TorchWorker"
    simple_compile_backend = "eager"  # inductor would call a C++ compiler at run time

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The types that models may have; the first is the default."""
        return [torch.bfloat16, torch.float16, torch.float32]

    @classmethod
    def pre_register_and_update(cls, parser: object = None) -> None:
        """Register what the plugin of a real NPU would."""
        import torch_platform.rotated  # noqa: F401

    @classmethod
    def import_kernels(cls) -> None:
        """Do nothing: there are none."""

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        """Return a name for logs."""
        return "cpu"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        """Return the machine's memory in bytes."""
        return psutil.virtual_memory().total

    @classmethod
    def num_compute_units(cls, device_id: int = 0) -> int:
        """Return what Triton kernels take for the number of cores, under its interpreter."""
        return os.cpu_count() or 1

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Make a device the current one."""
        torch.cpu.set_device(device)

    @classmethod
    def inference_mode(cls) -> torch.no_grad:
        """Return the context that forward passes run in."""
        return torch.no_grad()

    @classmethod
    def get_current_memory_usage(cls, device: torch.types.Device = None) -> float:
        """Return the bytes that this process uses."""
        return psutil.Process().memory_info().rss

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """Accept every type."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        """Whether copies to the device gain from pinned memory."""
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Whether layers may have KV caches of different kinds, as with sliding windows."""
        return True

    @classmethod
    def get_attn_backend_cls(
        cls,
        selected_backend: object,
        attn_selector_config: AttentionSelectorConfig,
        num_heads: int | None = None,
    ) -> str:
        """Return the attention backend's class; NotImplementedError for MLA and sparse ones."""
        if attn_selector_config.use_mla or attn_selector_config.use_sparse:
            raise NotImplementedError("the test platform has neither MLA nor sparse attention")
        return "torch_platform.attention.TorchAttentionBackend"

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        """Return the class that does collectives."""
        return "torch_platform.communicator.StagedCommunicator"

    @classmethod
    def get_punica_wrapper(cls) -> str:
        """Return the class that applies LoRA weights."""
        return "vllm.lora.punica_wrapper.punica_cpu.PunicaWrapperCPU"

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        """Switch off what needs compilers, graphs or custom kernels."""
        from vllm.config import CompilationMode, CUDAGraphMode

        if vllm_config.model_config is not None:
            vllm_config.model_config.disable_cascade_attn = True
        compilation = vllm_config.compilation_config
        compilation.mode = CompilationMode.NONE
        compilation.cudagraph_mode = CUDAGraphMode.NONE
        compilation.cudagraph_capture_sizes = []
        vllm_config.scheduler_config.async_scheduling = False
        parallel = vllm_config.parallel_config
        if parallel.worker_cls == "auto":
            parallel.worker_cls = cls.worker
        parallel.disable_custom_all_reduce = True
        parallel.enable_dbo = False
        gib = float(os.environ.get("TORCH_PLATFORM_KV_GIB", "0.25"))
        vllm_config.cache_config.cpu_kvcache_space_bytes = int(gib * (1 << 30))
        os.environ["VLLM_DISABLE_SHARED_EXPERTS_STREAM"] = "1"
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
