"""Whether sampled tokens are as frequent as their probabilities say."""

from __future__ import annotations

from collections.abc import Sequence

import torch

BINS = 20


def probabilities(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> torch.Tensor:
    """Return what sampling makes of logits [..., vocabulary], in float64."""
    shares = (logits.double() / temperature).softmax(-1)
    shares = shares.where(shares >= min_p * shares.amax(-1, keepdim=True), 0)
    ordered, order = shares.sort(-1, descending=True)
    if top_k:
        ordered[..., top_k:] = 0
    ordered /= ordered.sum(-1, keepdim=True)
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
    shares = torch.zeros_like(shares).scatter(-1, order, ordered)
    return shares / shares.sum(-1, keepdim=True)


def conditional_logits(
    model: torch.nn.Module, prompt: Sequence[int], samples: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Return logits [samples, tokens, vocabulary] after a prompt and what a sample had so far."""
    ids = torch.tensor([[*prompt, *sample] for sample in samples])
    with torch.no_grad():
        return model(ids).logits[:, len(prompt) - 1 : -1]


def surprise(shares: torch.Tensor, tokens: torch.Tensor) -> float:
    """Return by how many standard deviations the frequencies of tokens are wrong.

    `shares` are the probabilities [..., vocabulary] that each of `tokens` [...] was to have. With
    all tokens in a row, the likely ones first, each token is a stretch from 0 to 1: points that are
    anywhere in their stretches are everywhere from 0 to 1. They are counted in equal bins, and the
    chi-square is turned into a normal variable (Wilson and Hilferty).
    """
    ordered, order = shares.sort(-1, descending=True)
    place = (order == tokens[..., None]).int().argmax(-1, keepdim=True)
    own = ordered.gather(-1, place)
    assert (own > 0).all(), "a token that cannot be"
    chance = torch.Generator().manual_seed(1)
    where = torch.rand(own.shape, generator=chance, dtype=own.dtype)
    points = ordered.cumsum(-1).gather(-1, place) - own * where
    counts = (points * BINS).long().clamp(0, BINS - 1).flatten().bincount(minlength=BINS).double()
    wanted = tokens.numel() / BINS
    spread = 2 / (9 * (BINS - 1))
    chi_square = ((counts - wanted).square() / wanted).sum() / (BINS - 1)
    return float((chi_square ** (1 / 3) - (1 - spread)) / spread**0.5)
