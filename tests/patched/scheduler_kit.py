"""Real schedulers for a model that is only a configuration, and a stand-in to run it."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.model_executor.models.opt import OPTForCausalLM
from vllm.model_executor.models.registry import ModelRegistry
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCK = 16
OPT = {
    "architectures": ["OPTForCausalLM"],
    "model_type": "opt",
    "hidden_size": 8,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "ffn_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 512,
    "torch_dtype": "float16",
}


@functools.cache
def model_config() -> ModelConfig:
    """A model of one layer, known by its configuration only."""
    # The registry would look at the model's class in another process, which takes seconds.
    ModelRegistry.register_model("OPTForCausalLM", OPTForCausalLM)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(OPT))
        return ModelConfig(model=folder, skip_tokenizer_init=True, dtype="float16")


def kv_cache_config(num_blocks: int, hybrid: bool) -> KVCacheConfig:
    """The blocks of one attention layer, and of a Mamba layer too in a hybrid model."""
    attention = FullAttentionSpec(
        block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    mamba = MambaSpec(block_size=BLOCK, shapes=((1,),), dtypes=(torch.float32,))
    groups = [KVCacheGroupSpec(["attention"], attention)]
    groups += [KVCacheGroupSpec(["mamba"], mamba)] if hybrid else []
    return KVCacheConfig(num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def make_scheduler(
    kind: type[Scheduler] = Scheduler,
    *,
    max_num_seqs: int = 4,
    num_blocks: int = 1000,
    hybrid: bool = False,
    ranks: int = 1,
    **options: object,
) -> Scheduler:
    """Make a scheduler, for one of `ranks` engines; `options` go to its configuration."""
    scheduling = {
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": 512,
        "max_model_len": 512,
        "is_encoder_decoder": False,
        "async_scheduling": False,
    }
    config = VllmConfig(
        model_config=model_config(),
        scheduler_config=SchedulerConfig(**scheduling | options),
        cache_config=CacheConfig(block_size=BLOCK, enable_prefix_caching=False),
        parallel_config=ParallelConfig(data_parallel_size=ranks),
        device_config=DeviceConfig(device="cpu"),
    )
    config.cache_config.num_gpu_blocks = num_blocks
    return kind(
        vllm_config=config,
        kv_cache_config=kv_cache_config(num_blocks, hybrid),
        block_size=BLOCK,
        structured_output_manager=StructuredOutputManager(config),
        log_stats=True,
    )


def make_request(name: str, prompt: int = 10, new: int = 16, **more: object) -> Request:
    """A request of `prompt` tokens that stops after `new` ones."""
    arguments: dict = {
        "sampling_params": SamplingParams(max_tokens=new, ignore_eos=True),
        "pooling_params": None,
        "prompt_token_ids": list(range(prompt)),
    }
    return Request(request_id=name, **arguments | more)


def run_model(scheduler: Scheduler, scheduled: SchedulerOutput) -> dict[int, EngineCoreOutputs]:
    """Answer token 7 for each request whose prompt is done, as a model runner does."""
    names = list(scheduled.num_scheduled_tokens)
    done = {n: scheduler.requests[n] for n in names}
    output = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[
            [7] if r.num_computed_tokens >= r.num_prompt_tokens else [] for r in done.values()
        ],
    )
    return scheduler.update_from_output(scheduled, output)


def step(scheduler: Scheduler) -> dict[str, int]:
    """Schedule and run; return how many tokens of each request were scheduled."""
    scheduled = scheduler.schedule()
    run_model(scheduler, scheduled)
    return dict(scheduled.num_scheduled_tokens)
