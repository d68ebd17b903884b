"""Random sampling: seeds make it reproducible, and tokens are as frequent as they should be."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_drafts
import torch
from e2e_kit import TEXTS, Ground, Run, by_transformers, prompts
from frequencies import conditional_logits, probabilities, surprise
from transformers import AutoModelForCausalLM

RUNNERS = [("cpu", False), ("cpu", True), ("npu", False), ("npu", True)]


def runners(default: tuple[str, bool]) -> pytest.MarkDecorator:
    """Take all devices and runners, one of them by default: the interpreter takes its time."""
    slow = pytest.mark.slow
    each = [pytest.param(*one, marks=[slow] * (one != default)) for one in RUNNERS]
    return pytest.mark.parametrize(("device", "v2"), each)


#: Requests of each kind, and tokens of each.
REQUESTS, COUNT = 250, 4
WAYS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.4},
    {"temperature": 0.5, "top_k": 12},
    {"temperature": 0.4, "top_p": 0.6},
    {"temperature": 0.4, "top_k": 40, "top_p": 0.7},
    {"temperature": 0.3, "min_p": 0.1},
]
#: So far off are 3 of 100,000 right samplers; the seeds are fixed, so chance decides but once.
BOUND = 4.0


@runners(default=("npu", True))
def test_seeds(e2e: Ground, device: str, v2: bool) -> None:
    """A seeded request gives the same tokens alone, and among others that come and go."""
    folder = e2e.model("qwen3")
    seeded, other, greedy = prompts(folder, TEXTS[:3])
    ways = [{"temperature": 1.0, "seed": seed} for seed in (7, 7, 8)]
    ways.append({"temperature": 0.7, "seed": 7, "top_k": 50, "top_p": 0.9})
    alone = Run(folder, [seeded] * 4, {"max_num_seqs": 1}, ways)
    others = [
        {"temperature": 0, "max_tokens": 9},
        {"temperature": 1.0, "max_tokens": 5},
        {"temperature": 1.5, "top_k": 9, "max_tokens": 13},
    ]
    mixed = Run(
        folder,
        [greedy, other, seeded, seeded, other, seeded, seeded],
        {"max_num_seqs": 5},
        [*others[:2], *ways[:2], others[2], *ways[2:]],
        again=True,
    )
    first, second = e2e.generate(alone, mixed, device=device, v2=v2)
    same, too, different, narrow = first["tokens"]
    assert same == too
    assert len({tuple(tokens) for tokens in (same, different, narrow)}) == 3
    for result in (second, second["again"]):
        assert [result["tokens"][i] for i in (2, 3, 5, 6)] == first["tokens"]
        assert result["tokens"][:1] == by_transformers(folder, [greedy], 9)
    unseeded = [result["tokens"][1] for result in (second, second["again"])]
    assert unseeded[0] != unseeded[1]


@runners(default=("npu", False))
def test_frequencies(e2e: Ground, device: str, v2: bool) -> None:
    """All ways in one batch; every second request has a seed."""
    folder = e2e.model("qwen3", "qwen3_flat", num_hidden_layers=1)
    (prompt,) = prompts(folder, TEXTS[:1])
    asked = [
        {**way, "max_tokens": COUNT, **({"seed": i} if i % 2 else {})}
        for i in range(REQUESTS)
        for way in WAYS
    ]
    run = Run(folder, [prompt] * len(asked), {"max_num_seqs": 48}, asked)
    (result,) = e2e.generate(run, device=device, v2=v2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    wrong = {}
    for number, way in enumerate(WAYS):
        samples = result["tokens"][number :: len(WAYS)]
        logits = conditional_logits(model, prompt, samples)
        wrong[str(way)] = surprise(probabilities(logits, **way), torch.tensor(samples))
        if len(way) == 1:
            warmer = probabilities(logits, way["temperature"] * 1.25)
            assert surprise(warmer, torch.tensor(samples)) > BOUND, "a fault of 25 % shows"
    assert max(map(abs, wrong.values())) < BOUND, wrong


@pytest.mark.slow
@pytest.mark.parametrize(("device", "v2"), [("cpu", True), ("npu", True), ("npu", False)])
def test_frequencies_with_drafts(e2e: Ground, tmp_path, device: str, v2: bool) -> None:
    """Tokens after the first are drafts that were accepted, or what came in their place."""
    target = tiny_drafts.save_target(tmp_path / "target")
    draft = tiny_drafts.save_draft(tmp_path / "draft", target)
    (prompt,) = prompts(target, TEXTS[1:2])
    way = {"temperature": 0.04}  # the successor of a token has about 0.4
    speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 3}
    options = {"max_num_seqs": 32, "speculative_config": speculation}
    run = Run(target, [prompt] * 160, options, {**way, "max_tokens": 8})
    (result,) = e2e.generate(run, device=device, v2=v2)
    counts = result["counts"]
    assert 0.1 < counts["accepted_tokens"] / counts["draft_tokens"] < 0.9
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    shares = probabilities(conditional_logits(model, prompt, result["tokens"]), **way)
    tokens = torch.tensor(result["tokens"])
    wrong = [surprise(shares[:, i], tokens[:, i]) for i in range(tokens.shape[1])]
    wrong.append(surprise(shares, tokens))
    assert max(map(abs, wrong)) < BOUND, wrong
