"""W10: the V2 speculator's positions, in the buffer where later steps look for them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace

import pytest
import torch
from vllm.v1.worker.gpu.spec_decode.eagle import speculator
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator


class Mapped(Exception):
    """Ends `propose` once it has asked for the slots of the second draft token."""


def seen_by_later_steps(lengths: list[int], starts: list[int]) -> dict[str, list[int]]:
    """Run vLLM's own `propose`, but for model and kernels, up to the slots of the second token."""
    number = len(lengths)
    positions = [torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]
    batch = SimpleNamespace(
        num_reqs=number,
        num_reqs_after_padding=number,
        num_tokens_after_padding=sum(lengths),
        idx_mapping=torch.arange(number),
        positions=torch.cat(positions),
        seq_lens=None,
    )
    before = batch.positions.clone()
    buffers = SimpleNamespace(
        positions=torch.zeros(8, dtype=torch.int64), query_start_loc=torch.zeros(9)
    )
    seen: dict[str, list[int]] = {}

    def sample(logits, mapping, temperature, seeds, pos, **options):
        seen["sampled at"] = pos.tolist()
        return torch.zeros(number, dtype=torch.int64)

    def prepare_decode(tokens, hidden, last, lengths, rejected, buffers, *rest):
        buffers.positions[:number] += 1  # as the kernel does, in place

    def slots(mapping, query_start_loc, pos, tokens):
        seen["slots at"] = pos.tolist()
        seen["same memory"] = pos.data_ptr() == buffers.positions.data_ptr()
        raise Mapped

    this = SimpleNamespace(
        method="eagle",
        hidden_states=torch.zeros(16, 4),
        input_buffers=buffers,
        model=SimpleNamespace(compute_logits=lambda hidden: hidden),
        run_model=lambda tokens, *a, **k: (torch.zeros(tokens, 4), torch.zeros(tokens, 4)),
        idx_mapping=torch.zeros(8, dtype=torch.int64),
        temperature=torch.zeros(8),
        seeds=torch.zeros(8),
        num_speculative_steps=2,
        draft_tokens=torch.zeros(8, 2, dtype=torch.int64),
        max_model_len=64,
        max_num_reqs=8,
        dp_size=1,
        cudagraph_manager=SimpleNamespace(
            dispatch=lambda *a: SimpleNamespace(num_tokens=number, cg_mode=None)
        ),
        block_tables=SimpleNamespace(compute_slot_mappings=slots),
    )
    last = torch.tensor(lengths).cumsum(0) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(speculator, "prepare_eagle_inputs", lambda *a: last)
        patch.setattr(speculator, "gumbel_sample", sample)
        patch.setattr(speculator, "prepare_eagle_decode", prepare_decode)
        hidden = torch.zeros(sum(lengths), 4)
        zeros = torch.zeros(8)
        with pytest.raises(Mapped):
            EagleSpeculator.propose(
                this, batch, {}, {}, hidden, None, zeros, zeros, zeros, zeros, zeros, zeros, None
            )
    assert torch.equal(batch.positions, before)
    return {**seen, "buffer": buffers.positions.tolist()}


def test_positions_of_prefill_and_decode() -> None:
    """A copy of the positions instead of the view would give [11, 12] and [12, 21]."""
    assert seen_by_later_steps([3, 2], [10, 20]) == {
        "sampled at": [13, 22],
        "slots at": [13, 22],
        "same memory": True,
        "buffer": [13, 22, 0, 0, 0, 0, 0, 0],
    }


def test_one_token_each() -> None:
    seen = seen_by_later_steps([1, 1, 1], [5, 9, 0])
    assert seen["slots at"] == seen["sampled at"] == [6, 10, 1]


def test_statement_gathers_into_the_view() -> None:
    positions, last = torch.tensor([10, 11, 12, 20, 21]), torch.tensor([2, 4])
    buffer = torch.zeros(8, dtype=torch.int64)
    pos = buffer[:2]
    pos.copy_(positions[last])
    assert buffer.tolist() == [12, 21, 0, 0, 0, 0, 0, 0]
    expected = torch.zeros(8, dtype=torch.int64)
    torch.gather(positions, 0, last, out=expected[:2])
    assert torch.equal(buffer, expected)


def test_nothing_is_written_through_out() -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(EagleSpeculator.propose)))
    keywords = [k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords]
    assert "out" not in keywords and "num_tokens_across_dp" in keywords
