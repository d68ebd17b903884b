"""The worker: vLLM's own for CPUs, less what needs its C++ extension."""

from __future__ import annotations

import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment

import torch_platform.moe  # noqa: F401 - registers its layer


class TorchWorker(CPUWorker):
    """Runs vLLM's CPU model runner without binding threads or preloading libraries."""

    def init_device(self) -> None:
        """Join the other workers and make the model runner."""
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend,
        )
        set_random_seed(self.model_config.seed)
        self.model_runner = CPUModelRunner(self.vllm_config, self.device)

    def compile_or_warm_up_model(self) -> float:
        """Return the seconds that compilation took: there is none."""
        return 0.0
