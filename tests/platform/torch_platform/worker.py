"""The workers: vLLM's own, less what needs its C++ extension or measures a device's memory."""

from __future__ import annotations

import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu.model_runner import GPUModelRunner as ModelRunnerV2
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment

import torch_platform.moe  # noqa: F401 - registers its layer
from torch_platform.npu_runner import NpuModelRunner


class _Worker(Worker):
    """What both workers have in common."""

    #: The runner, unless vLLM's second one is asked for.
    runner: type[GPUModelRunner]

    def init_device(self) -> None:
        """Join the other workers and make the model runner."""
        self.device = torch.device(current_platform.device_type, self._device_index())
        current_platform.set_device(self.device)
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        runner = ModelRunnerV2 if self.use_v2_model_runner else self.runner
        self.model_runner = runner(self.vllm_config, self.device)

    def _device_index(self) -> int | None:
        return self.local_rank

    def determine_available_memory(self) -> int:
        """Return the bytes for KV caches."""
        return self.cache_config.cpu_kvcache_space_bytes

    def compile_or_warm_up_model(self) -> float:
        """Return the seconds that compilation took: there is none."""
        return 0.0


class NpuWorker(_Worker):
    """Runs vLLM's model runners on the device of type "npu"."""

    runner = NpuModelRunner


class TorchWorker(_Worker, CPUWorker):
    """Runs vLLM's CPU model runner without binding threads or preloading libraries."""

    runner = CPUModelRunner

    def _device_index(self) -> int | None:
        return None
