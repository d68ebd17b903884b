"""W16: a rotated target with its Eagle-3 draft gives what the unrotated target gives."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from model_kit import config_with, engine_config, llama, one_rank, with_attention
from quarot_kit import (
    AUX,
    DESCRIPTION,
    DRAFT_V,
    LAYERS,
    H,
    V,
    draft_weights,
    quantization,
    rotated,
    rotation,
    save_rotated_target,
    target_weights,
)
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import deepseek_eagle3
from vllm.model_executor.models.llama import LlamaForCausalLM

from ascend_runtime.quarot import find_target_rotation

Q = rotation()
TOKENS = torch.tensor([3, 17, 40, 5, 5])
POSITIONS = torch.arange(5)


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    """The target's folder holds its rotated checkpoint."""
    with one_rank() as work:
        llama(
            num_hidden_layers=1,
            draft_vocab_size=DRAFT_V,
            architectures=["LlamaForCausalLMEagle3"],
        ).save_pretrained(work / "draft")
        config = engine_config(
            work / "target",
            llama(num_hidden_layers=LAYERS),
            speculative_config={
                "method": "eagle3",
                "model": str(work / "draft"),
                "num_speculative_tokens": 2,
            },
        )
        save_rotated_target(work / "target", Q)
        yield config


def draft_of(
    config: VllmConfig,
    weights: dict[str, torch.Tensor],
    description: object,
    *,
    parallel: bool = False,
    **fields: object,
) -> nn.Module:
    """The draft, as vLLM builds and loads it; `fields` go into its Hugging Face configuration."""
    speculative = copy.copy(config.speculative_config)
    model_config = copy.copy(speculative.draft_model_config)
    hf_config = copy.deepcopy(model_config.hf_config)
    for name, value in fields.items():
        setattr(hf_config, name, value)
    object.__setattr__(model_config, "hf_config", hf_config)
    object.__setattr__(speculative, "draft_model_config", model_config)
    object.__setattr__(speculative, "parallel_drafting", parallel)
    whole = config_with(
        config, speculative_config=speculative, quant_config=quantization(description)
    )
    draft = initialize_model(whole, model_config=model_config)
    draft.load_weights(iter(weights.items()))
    return with_attention(draft)


def target_of(config: VllmConfig, weights: dict[str, torch.Tensor]) -> LlamaForCausalLM:
    target = initialize_model(config_with(config))
    target.load_weights(iter(weights.items()))
    target.set_aux_hidden_state_layers(AUX)
    return with_attention(target)


@torch.inference_mode()
def ran(target: nn.Module) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits and auxiliary states of the target."""
    hidden, aux = target(TOKENS, POSITIONS)
    return target.compute_logits(hidden), aux


@torch.inference_mode()
def drafted(draft: nn.Module, aux: list[torch.Tensor]) -> torch.Tensor:
    combined = draft.combine_hidden_states(torch.cat(aux, dim=-1))
    hidden, _ = draft(TOKENS, POSITIONS, combined)
    return draft.compute_logits(hidden)[:, draft.draft_id_to_target_id + torch.arange(DRAFT_V)]


@pytest.fixture(scope="module")
def plain(config: VllmConfig) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return ran(target_of(config, target_weights()))


@pytest.fixture(scope="module")
def turned(config: VllmConfig) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return ran(target_of(config, rotated(target_weights(), Q)))


def test_the_target_is_rotated_and_gives_the_same(plain, turned) -> None:
    torch.testing.assert_close(turned[0], plain[0], atol=1e-5, rtol=1e-5)
    for before, after in zip(plain[1], turned[1], strict=True):
        torch.testing.assert_close(after, before @ Q, atol=1e-5, rtol=1e-5)
        assert (after - before).abs().max() > 0.1


@pytest.mark.parametrize("norm_before_fc", [False, True])
def test_rotated_target_and_draft_give_the_unrotated_results(
    config, plain, turned, norm_before_fc
) -> None:
    weights = draft_weights(norm_before_fc=norm_before_fc)
    fields = {"norm_before_fc": norm_before_fc}
    before = drafted(draft_of(config, weights, None, **fields), plain[1])
    fitted = draft_of(config, weights, DESCRIPTION, **fields)
    torch.testing.assert_close(drafted(fitted, turned[1]), before, atol=1e-5, rtol=1e-5)
    naive = drafted(draft_of(config, weights, None, **fields), turned[1])
    assert (naive - before).abs().max() > 0.1
    if norm_before_fc:
        assert torch.equal(fitted.model.input_norm.weight, torch.ones(3 * H))


def test_a_draft_without_embedding_gets_the_targets_rotated_back(config, plain, turned) -> None:
    weights = draft_weights(embedding=False)
    own = target_weights()["model.embed_tokens.weight"]
    with_own = {**weights, "embed_tokens.weight": own}
    before = drafted(draft_of(config, with_own, None), plain[1])
    fitted = draft_of(config, weights, DESCRIPTION)
    torch.testing.assert_close(fitted.model.embed_tokens.weight[:V], own, atol=1e-6, rtol=1e-6)
    assert fitted.has_own_embed_tokens  # so the runner does not put the target's in its place
    torch.testing.assert_close(drafted(fitted, turned[1]), before, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm_before_fc", [False, True])
def test_mask_hidden_of_parallel_drafting(config, norm_before_fc) -> None:
    """Checkpoints with it load, and the mask means to `fc` what it meant."""
    weights = draft_weights(mask=True, norm_before_fc=norm_before_fc)
    fields = {"norm_before_fc": norm_before_fc, "parallel": True}
    before = draft_of(config, weights, None, **fields)
    after = draft_of(config, weights, DESCRIPTION, **fields)
    blocks = torch.block_diag(Q, Q, Q)
    torch.testing.assert_close(after.mask_hidden, before.mask_hidden @ blocks)
    masks = [draft.combine_hidden_states(draft.mask_hidden) for draft in (before, after)]
    torch.testing.assert_close(masks[1], masks[0], atol=1e-5, rtol=1e-5)


NOWHERE = [
    {},
    {"optional": None},
    {"optional": {}},
    {"optional": {"quarot": None}},
    {"optional": {"quarot": {}}},
    {"optional": {"quarot": {"rotation_map": {}}}},
    {"optional": {"quarot": {"rotation_map": {"global_rotation": ""}}}},
    {"optional": {"quarot": "yes"}},
    None,
]


@pytest.mark.parametrize("description", NOWHERE)
def test_off_is_upstream_to_the_bit(config, description) -> None:
    weights = draft_weights(norm_before_fc=True)
    draft = draft_of(config, weights, description, norm_before_fc=True)
    assert draft.target_rotation is None
    loaded = dict(draft.named_parameters())
    assert torch.equal(loaded["model.fc.weight"], weights["fc.weight"])
    assert torch.equal(loaded["model.input_norm.weight"], weights["input_norm.weight"])
    assert torch.equal(loaded["model.embed_tokens.weight"][:V], weights["embed_tokens.weight"])


def test_a_quantization_without_description(config) -> None:
    """What every quantized target with a draft is, but for Ascend's own quantizer."""
    other = config_with(config, quant_config=quantization(None))
    del other.quant_config.quant_description
    draft = initialize_model(other, model_config=other.speculative_config.draft_model_config)
    assert draft.target_rotation is None


def test_off_without_embedding_shares_the_targets(config) -> None:
    draft = draft_of(config, draft_weights(embedding=False), None)
    assert not draft.has_own_embed_tokens


def test_later_models_of_the_process_are_not_rotated(config) -> None:
    weights = draft_weights()
    draft_of(config, weights, DESCRIPTION)
    after = draft_of(config, weights, None)
    assert torch.equal(after.model.fc.weight, weights["fc.weight"])


def test_loading_again_rotates_the_new_weights_once(config) -> None:
    weights = draft_weights()
    draft = draft_of(config, weights, DESCRIPTION)
    first = draft.model.fc.weight.clone()
    draft.load_weights(iter(weights.items()))
    assert torch.equal(draft.model.fc.weight, first)


def test_quantized_fc_is_refused(config) -> None:
    weights = {**draft_weights(), "fc.weight_scale": torch.ones(1)}
    with pytest.raises(ValueError, match=r"fc\.weight_scale: a quantized fc"):
        draft_of(config, weights, DESCRIPTION)


class Mixer(nn.Module):
    """In the place of MLA attention: any function of what it takes in."""

    def __init__(self) -> None:
        super().__init__()
        noise = torch.randn(H, 2 * H, generator=torch.Generator().manual_seed(3))
        self.weight = nn.Parameter(noise * 0.2)

    def forward(self, positions, hidden_states, llama_4_scaling) -> torch.Tensor:
        return hidden_states @ self.weight.t()


def deepseek_draft(config: VllmConfig, weights: dict, description: object) -> nn.Module:
    """The other head; only its attention is a stand-in."""
    hf_config = llama(num_hidden_layers=1, draft_vocab_size=DRAFT_V, hidden_act="silu")
    speculative = SimpleNamespace(draft_model_config=SimpleNamespace(hf_config=hf_config))
    whole = config_with(config, quant_config=quantization(description))
    object.__setattr__(whole, "speculative_config", speculative)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepseek_eagle3, "DeepseekV2MLAAttention", lambda **keywords: Mixer())
        patch.setattr(deepseek_eagle3, "get_draft_quant_config", lambda config: None)
        draft = initialize_model(whole, model_class=deepseek_eagle3.Eagle3DeepseekV2ForCausalLM)
    draft.load_weights((n, w) for n, w in weights.items() if "self_attn" not in n)
    return draft


@pytest.mark.parametrize("embedding", [True, False])
def test_the_deepseek_head(config, plain, turned, embedding) -> None:
    weights = draft_weights(embedding=embedding)
    own = target_weights()["model.embed_tokens.weight"]
    before = deepseek_draft(config, {"embed_tokens.weight": own, **weights}, None)
    after = deepseek_draft(config, weights, DESCRIPTION)
    assert before.target_rotation is None
    assert torch.equal(before.model.fc.weight, weights["fc.weight"])
    assert after.has_own_embed_tokens
    expected = drafted(before, plain[1])
    torch.testing.assert_close(drafted(after, turned[1]), expected, atol=1e-5, rtol=1e-5)
    assert (drafted(before, turned[1]) - expected).abs().max() > 0.1


def test_a_model_of_a_hub_is_found_in_its_cache(config, monkeypatch) -> None:
    """A run by name, and not by folder."""
    import huggingface_hub

    folder = Path(config.model_config.model)
    asked = []

    def snapshot_download(*names: str, **keywords: object) -> str:
        asked.append((*names, keywords["revision"], keywords["local_files_only"]))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    named = copy.copy(config.model_config)
    object.__setattr__(named, "model", "somebody/some-model")
    object.__setattr__(named, "revision", "v2")
    whole = config_with(config, model_config=named, quant_config=quantization(DESCRIPTION))
    found = find_target_rotation(whole)
    assert found.folder == folder
    assert asked == [("somebody/some-model", "v2", True)]
