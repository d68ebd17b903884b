"""The transforms that came with the engine."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import platform
from types import SimpleNamespace

from facts import fact


@fact
def sched_yield_arm() -> bool:
    from vllm.distributed import utils

    platform.machine = lambda: "aarch64"
    return importlib.reload(utils).USE_SCHED_YIELD is False


@fact
def distribution_name() -> bool:
    from vllm.platforms import vllm_version_matches_substr

    return vllm_version_matches_substr("+npu.")


@fact
def worker_daemon() -> bool:
    os.environ["DYNAMIC_EPLB"] = "1"
    import pytest
    from test_worker_daemon import process_keywords

    with pytest.MonkeyPatch.context() as patch:
        return process_keywords(patch)["daemon"] is False


@fact
def optional_fusion_ops() -> bool:
    from vllm.compilation.passes.fusion import matcher_utils

    return type(matcher_utils.RMS_OP).__name__ == "MissingOp"


@fact
def minimax_eagle3_allow() -> bool:
    from test_minimax import verify

    return verify("eagle3", "minimax_m2").method == "eagle3"


@fact
def eagle3_minimax_alias() -> bool:
    from vllm.model_executor.models.registry import ModelRegistry

    return "Eagle3MiniMaxM2ForCausalLM" in ModelRegistry.get_supported_archs()


@fact
def multimodal_merge() -> bool:
    import torch
    from vllm.model_executor.models.utils import _merge_multimodal_embeddings

    try:  # surplus embeddings, which `masked_scatter_` takes in silence
        _merge_multimodal_embeddings(torch.zeros(2, 3), torch.ones(5, 3), torch.ones(2).bool())
    except ValueError as error:
        return "5 multimodal tokens to 2 placeholders" in str(error)
    return False


@fact
def bert_token_type_shift() -> bool:
    from vllm.model_executor.models import roberta

    return "full_like" in roberta._decode_token_type_ids.__code__.co_names


@fact
def bind_kv_cache_out_of_tree() -> bool:
    from vllm.v1.worker import gpu_model_runner, utils

    no, yes = (lambda: False), (lambda: True)
    utils.current_platform = SimpleNamespace(
        is_cuda_alike=no, is_xpu=no, is_cpu=no, is_out_of_tree=yes
    )
    names = ["model.layers.0.attn", "mtp.layers.0.attn"]
    bound: list = []
    layers = {name: SimpleNamespace() for name in names}
    gpu_model_runner.bind_kv_cache(dict.fromkeys(names, 7), layers, bound)
    return bound == [7, 7]


@fact
def gdn_stable_argsort() -> bool:
    from test_gdn_argsort import argsorts

    return [ast.unparse(call.args[0]) for call in argsorts()] == [
        "spec_token_masks.to(torch.int32)"
    ]


@fact
def processor_special_tokens() -> bool:
    from test_processors import Tokenizer, hunyuan

    tokenizer = Tokenizer()
    hunyuan(tokenizer)(text="a prompt", add_special_tokens=True)
    return tokenizer.calls[0][1] == {"add_special_tokens": False}


@fact
def kimi_rope_backend() -> bool:
    from vllm.model_executor.models import kimi_k25_vit

    return "backend=current_platform.simple_compile_backend" in inspect.getsource(kimi_k25_vit)


@fact
def device_values() -> bool:
    from vllm.lora.lora_model import LoRAModel

    return inspect.signature(LoRAModel.from_lora_tensors).parameters["device"].default is None
