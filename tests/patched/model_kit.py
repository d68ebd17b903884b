"""vLLM's real model classes, tiny, on one rank and torch's CPU operators."""

from __future__ import annotations

import copy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
import vllm.platforms
from torch import nn
from transformers import LlamaConfig, PretrainedConfig
from vllm.config import CompilationMode, VllmConfig, set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    init_distributed_environment,
    initialize_model_parallel,
    parallel_state,
)
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models import registry
from vllm.platforms.interface import Platform, PlatformEnum
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl

LLAMA = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 48,
    "max_position_embeddings": 64,
}


class Host(Platform):
    """An out-of-tree platform whose device is the CPU, and which has no kernels of its own."""

    _enum = PlatformEnum.OOT
    device_name = device_type = "cpu"
    dispatch_key = "CPU"
    dist_backend = "gloo"
    simple_compile_backend = "eager"

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "cpu"

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        vllm_config.compilation_config.mode = CompilationMode.NONE

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        pass

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def get_attn_backend_cls(cls, *args: object, **kwargs: object) -> str:
        return "model_kit.NoBackend"


class NoImpl(AttentionImpl):
    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def forward(self, *args: object, **kwargs: object) -> torch.Tensor:
        raise NotImplementedError("put CausalAttention in its place")


class NoBackend(AttentionBackend):
    """Attention that can be built, but not run."""

    accept_output_buffer = True

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl]:
        return NoImpl

    @staticmethod
    def get_builder_cls() -> None:
        return None

    @staticmethod
    def get_kv_cache_shape(*args: object, **kwargs: object) -> tuple[int, ...]:
        return ()


class CausalAttention(nn.Module):
    """Attention over the one prompt that is in the batch."""

    def __init__(self, layer: Attention) -> None:
        super().__init__()
        self.heads, self.kv_heads = layer.num_heads, layer.num_kv_heads

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            x.view(len(x), heads, -1).transpose(0, 1)[None]
            for x, heads in ((q, self.heads), (k, self.kv_heads), (v, self.kv_heads))
        )
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)


def with_attention(model: nn.Module) -> nn.Module:
    """Put attention that runs into the place of vLLM's, and return the model."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, Attention):
                setattr(module, name, CausalAttention(child))
    return model


@contextmanager
def _on_host() -> Iterator[None]:
    """Make it the platform of vLLM and of all modules with a copy, now or imported meanwhile."""
    before, host = vllm.platforms.current_platform, Host()

    def exchange(old: Platform, new: Platform) -> None:
        vllm.platforms._current_platform = new
        for name, module in list(sys.modules.items()):
            if name.startswith("vllm.") and vars(module).get("current_platform") is old:
                module.current_platform = new

    exchange(before, host)
    try:
        yield
    finally:
        exchange(host, before)


@contextmanager
def one_rank() -> Iterator[Path]:
    """One rank, gloo, on the platform above; gives a folder to work in."""
    with (
        tempfile.TemporaryDirectory() as folder,
        _on_host(),
        pytest.MonkeyPatch.context() as patch,
    ):
        # vLLM would inspect each architecture in a process of its own.
        patch.setattr(
            registry._LazyRegisteredModel,
            "inspect_model_cls",
            lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls()),
        )
        with set_current_vllm_config(VllmConfig()):
            init_distributed_environment(1, 0, f"file://{folder}/store", 0, "gloo")
            initialize_model_parallel(1, 1)
        try:
            yield Path(folder)
        finally:
            destroy_model_parallel()
            destroy_distributed_environment()


def engine_config(folder: Path, target: PretrainedConfig, **arguments: object) -> VllmConfig:
    """vLLM's whole configuration of a model, written into the folder, in float32."""
    target.save_pretrained(folder)
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        **arguments,
    ).create_engine_config()


def llama(**fields: object) -> LlamaConfig:
    return LlamaConfig(**{**LLAMA, "architectures": ["LlamaForCausalLM"], **fields})


def other_model(config: VllmConfig, hf_config: PretrainedConfig) -> VllmConfig:
    """The configuration with another model, which vLLM is not asked to look up."""
    model_config = copy.copy(config.model_config)
    for name in ("hf_config", "hf_text_config"):
        object.__setattr__(model_config, name, hf_config)
    return config_with(config, model_config=model_config)


def config_with(config: VllmConfig, **fields: object) -> VllmConfig:
    """A copy of the configuration with other fields, unchecked."""
    changed = copy.copy(config)
    changed.compilation_config = copy.copy(config.compilation_config)
    changed.compilation_config.static_forward_context = {}
    for name, value in fields.items():
        object.__setattr__(changed, name, value)
    return changed


@contextmanager
def tensor_parallel(size: int, rank: int) -> Iterator[list[torch.Tensor]]:
    """Tell vLLM that this process is a rank of several; gives the tensors that it all-reduces.

    An all-reduce returns the tensor times the number of ranks, as if all had the same.
    """
    reduced: list[torch.Tensor] = []

    def all_reduce(tensor: torch.Tensor) -> torch.Tensor:
        reduced.append(tensor)
        return tensor * size

    group = SimpleNamespace(
        world_size=size,
        rank_in_group=rank,
        ranks=list(range(size)),
        all_reduce=all_reduce,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel_state, "_TP", group)
        yield reduced


def randomized(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give all parameters of floating point small random values, norms those around one."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator) * 0.2
            parameter.data.copy_(noise + 1 if name.endswith("norm.weight") else noise)
    return model
