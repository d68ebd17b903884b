"""The worker rows about models."""

from __future__ import annotations

from types import SimpleNamespace

from facts import fact


@fact
def draft_quarot() -> bool:
    from vllm.model_executor.models import deepseek_eagle3, llama_eagle3

    heads = llama_eagle3.Eagle3LlamaForCausalLM, deepseek_eagle3.Eagle3DeepseekV2ForCausalLM
    return all(
        "find_target_rotation" in head.__init__.__code__.co_names
        and "adapt_draft_weights" in head.load_weights.__code__.co_names
        for head in heads
    )


@fact
def moe_reduce_once() -> bool:
    from test_moe_reduce import HIDDEN, run

    result, seen = run("minimax_m2", 2, reduced=True)
    return seen == [] and bool((result == 2 * HIDDEN).all())


@fact
def minimax_norm_shards() -> bool:
    import torch
    from vllm.model_executor.layers.mamba.linear_attn import MiniMaxText01RMSNormTP

    param = torch.nn.Parameter(torch.zeros(2))
    MiniMaxText01RMSNormTP.weight_loader(param, torch.arange(8.0), shard_world_size=4, shard_rank=3)
    return param.tolist() == [6, 7]


@fact
def minimax_eagle3_states() -> bool:
    """Also in the process that inspects models for the registry."""
    from vllm.model_executor.models.interfaces import supports_eagle3
    from vllm.model_executor.models.registry import ModelRegistry

    model = ModelRegistry._try_load_model_cls("MiniMaxM2ForCausalLM")
    return supports_eagle3(model)


@fact
def minimax_fp8_load() -> bool:
    import pytest
    from vllm.model_executor.models import minimax_m2

    stub = SimpleNamespace(
        quant_config=None,
        config=SimpleNamespace(quantization_config={"quant_method": "fp8"}),
    )
    loader = SimpleNamespace(load_weights=lambda weights: type(weights).__name__)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minimax_m2, "AutoWeightsLoader", lambda model: loader)
        return minimax_m2.MiniMaxM2ForCausalLM.load_weights(stub, []) == "generator"


@fact
def c8_scale_names() -> bool:
    from vllm.model_executor.models import deepseek_mtp

    mapped = "a.mla_attn.mla_attn.fa_k.scale"
    return deepseek_mtp.maybe_remap_kv_scale_name("a.fa_k.scale", {mapped: None}) == mapped


@fact
def missing_scales() -> bool:
    from test_missing_scales import LOADERS, bare
    from vllm.model_executor.models.deepseek_mtp import DeepSeekMTP

    model = bare(DeepSeekMTP, LOADERS[DeepSeekMTP])
    try:  # None among the loaded names is an AttributeError, where the layer is a ValueError
        model.load_weights([("model.layers.2.self_attn.k_scale", None)])
    except ValueError:
        return True
    return False


@fact
def glm5_mtp_rotation() -> bool:
    from vllm.model_executor.models import deepseek_mtp

    config = SimpleNamespace(num_hidden_layers=3, num_nextn_predict_layers=1)
    layer = deepseek_mtp.get_spec_layer_idx_from_weight_name(config, "rot.weight")
    name = deepseek_mtp.DeepSeekMTP._rewrite_spec_layer_name(None, layer, "rot.weight")
    return (layer, name) == (3, "model.rot.weight")
