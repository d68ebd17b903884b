"""The patched rejection sampler on a CPU, without Triton: by dispatch, its host code untouched."""

from __future__ import annotations

import pytest
import torch
from vllm.v1.sample import rejection_sampler as sampler
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.metadata import SamplingMetadata

VOCAB = 6


def metadata(requests: int, temperature: float | None = 1.0, generators=None, top_k=None):
    empty = torch.empty(0)
    values = None if temperature is None else torch.full((requests,), temperature)
    return SamplingMetadata(
        temperature=values,
        all_greedy=temperature is None,
        all_random=temperature is not None,
        top_p=None,
        top_k=top_k,
        generators=generators or {},
        max_num_logprobs=None,
        no_penalties=True,
        prompt_token_ids=None,
        frequency_penalties=empty,
        presence_penalties=empty,
        repetition_penalties=empty,
        output_token_ids=[],
        allowed_token_ids_mask=None,
        bad_words_token_ids={},
        logitsprocs=LogitsProcessors(),
    )


def sample(drafts: list[list[int]], logits: torch.Tensor, bonus: list[int], how) -> list[list[int]]:
    counts = [len(one) for one in drafts]
    return sampler.rejection_sample(
        torch.tensor([token for one in drafts for token in one], dtype=torch.int32),
        counts,
        max(counts),
        torch.tensor(counts).cumsum(0).int(),
        None,
        logits,
        torch.tensor(bonus, dtype=torch.int32)[:, None],
        how,
    ).tolist()


def certain(*tokens: int) -> torch.Tensor:
    logits = torch.full((len(tokens), VOCAB), -1e9)
    logits[range(len(tokens)), tokens] = 0
    return logits


@pytest.mark.parametrize("temperature", [None, 1.0])
def test_accepts_what_the_target_says(temperature):
    got = sample([[1, 2], [3, 4], []], certain(1, 5, 3, 4), [0, 0, 2], metadata(3, temperature))
    assert got == [[1, 5, -1], [3, 4, 0], [2, -1, -1]]


def test_seeds_are_reproducible_whatever_runs_beside():
    def run(before: int) -> list[int]:
        generators = {0: torch.Generator().manual_seed(7)}
        torch.manual_seed(before)
        logits = torch.linspace(0, 1, 5 * VOCAB).view(5, VOCAB)
        return sample([[1, 2, 3], [1, 1]], logits, [0, 0], metadata(2, generators=generators))[0]

    assert run(1) == run(2) == run(3)


def test_request_without_drafts_keeps_its_generator():
    """Drawing for it would make the seed depend on whether there were drafts."""
    generator = torch.Generator().manual_seed(7)
    before = generator.get_state()
    sample([[1], []], certain(1), [0, 0], metadata(2, generators={1: generator}))
    assert generator.get_state().equal(before)
    sample([[1], [1]], certain(1, 1), [0, 0], metadata(2, generators={1: generator}))
    assert not generator.get_state().equal(before)


def test_expands_exactly():
    x = torch.tensor([2**40 + 1, 0, 3])
    cu = torch.tensor([2, 2, 3], dtype=torch.int32)
    assert sampler.expand_batch_to_tokens(x, cu, 3, 3, 4).tolist() == [2**40 + 1, 2**40 + 1, 4]


def test_constraints_are_cut_for_each_token():
    logits = torch.arange(3.0 * VOCAB).view(3, VOCAB)
    how = metadata(2, 1.0, top_k=torch.tensor([1, 2]))
    cut = sampler.apply_sampling_constraints(logits, torch.tensor([2, 3], dtype=torch.int32), how)
    assert cut.isfinite().sum(-1).tolist() == [1, 1, 2]


def test_top_k_top_p_of_many_rows_needs_no_compute_units(monkeypatch):
    """With Triton, vLLM asks the platform for them from eight rows on; an NPU's has none."""
    from vllm.v1.sample.ops import topk_topp_sampler as ops

    monkeypatch.setattr(ops, "HAS_TRITON", True)
    logits = torch.arange(8.0 * VOCAB).view(8, VOCAB)
    cut = ops.apply_top_k_top_p(logits, torch.full((8,), 2), None)
    assert cut.isfinite().sum(-1).tolist() == [2] * 8
