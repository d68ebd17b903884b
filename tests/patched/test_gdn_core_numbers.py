"""W8: the core of gated delta nets with its caches, through dispatch, step after step.

Every request is compared with its own recurrence, token by token from nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

import gdn_kit as kit
import pytest
import torch
import torch.nn.functional as F
from test_gdn_argsort import builder
from torch.testing import assert_close
from vllm.config import CUDAGraphMode
from vllm.model_executor.layers.fla.ops import chunk_gated_delta_rule
from vllm.model_executor.models import qwen3_next
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

WIDTH, DRAFTS, LINES = 4, 2, 4
WEIGHT = torch.randn(kit.QKV, WIDTH, generator=torch.Generator().manual_seed(7)) / 2
#: What nobody may read or write.
UNTOUCHED = 9.0


class Request:
    """Inputs of all its tokens, and what the core must give for them."""

    def __init__(self, number: int, tokens: int, dtype: torch.dtype) -> None:
        chance = torch.Generator().manual_seed(number)
        self.mixed = torch.randn(tokens, kit.QKV, generator=chance).to(dtype)
        self.a = torch.randn(tokens, kit.HV, generator=chance).to(dtype)
        self.b = torch.randn(tokens, kit.HV, generator=chance).to(dtype)
        padded = F.pad(self.mixed.T.float(), (WIDTH - 1, 0))
        x = F.silu(F.conv1d(padded, WEIGHT.to(dtype).float()[:, None], groups=kit.QKV)).T
        x = x.to(dtype).float()  # the core keeps it in the dtype of its input
        q, k, v = x.split([kit.HK * kit.DK, kit.HK * kit.DK, kit.HV * kit.DV], dim=1)
        q, k = (y.reshape(tokens, kit.HK, kit.DK) for y in (q, k))
        g, beta = kit.gates(kit.A_LOG, self.a.float(), self.b.float(), kit.DT_BIAS)
        zero = torch.zeros(kit.HV, kit.DV, kit.DK)
        self.outputs, self.states = kit.delta_rule(
            q, k, v.reshape(tokens, kit.HV, kit.DV), g, beta, zero
        )
        self.done, self.accepted = 0, 1

    def rows(self, count: int, kept: int, chance: torch.Generator) -> list[torch.Tensor]:
        """The next tokens, of which those after the first `kept` are drafts that fail."""
        taken = []
        for x in (self.mixed, self.a, self.b):
            good = x[self.done : self.done + kept]
            bad = torch.randn(count - kept, x.shape[1], generator=chance).to(x.dtype)
            taken.append(torch.cat([good, bad]))
        return taken


class Session:
    """A layer with caches that are not numbers at first, and some requests."""

    def __init__(
        self,
        tokens: list[int],
        dtype: torch.dtype = torch.float16,
        *,
        packed: bool = False,
        graphs: bool = False,
    ) -> None:
        self.requests = [Request(number, count, dtype) for number, count in enumerate(tokens)]
        self.dtype, self.atol = dtype, {torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
        lines = (len(tokens) + 1) * LINES  # the first are of no request
        self.conv = torch.full((lines, WIDTH - 1 + DRAFTS, kit.QKV), torch.nan, dtype=dtype)
        self.states = torch.full((lines, kit.HV, kit.DV, kit.DK), torch.nan)
        for cache in (self.conv, self.states):
            cache[:LINES] = UNTOUCHED
        self.builder = builder(DRAFTS)
        if graphs:
            self.builder.use_full_cuda_graph = True
            assert CUDAGraphMode.FULL.has_full_cudagraphs()
        self.chance = torch.Generator().manual_seed(3)
        self.layer = kit.layer(
            qwen3_next.Qwen3NextGatedDeltaNet,
            enable_packed_recurrent_decode=packed,
            kv_cache=[(self.conv, self.states)],
            conv1d=SimpleNamespace(weight=WEIGHT.to(dtype)[:, None], bias=None),
            activation="silu",
            A_log=kit.A_LOG,
            dt_bias=kit.DT_BIAS,
            chunk_gated_delta_rule=chunk_gated_delta_rule,
        )

    def metadata(self, batch: list[tuple[int, int, int]], pad: int) -> GDNAttentionMetadata:
        """Of (request, rows, drafts or -1) and `pad` requests of nobody, as in a full graph."""
        counts = torch.tensor([count for _, count, _ in batch] + [0] * pad)
        starts = torch.cat([torch.zeros(1), counts.cumsum(0)]).int()
        who = [self.requests[number] for number, _, _ in batch]
        done = torch.tensor([one.done for one in who] + [0] * pad)
        first = torch.tensor([(number + 1) * LINES for number, _, _ in batch]).int()
        table = F.pad(first[:, None] + torch.arange(LINES).int(), (0, 0, 0, pad), value=-1)
        common = CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts,
            seq_lens=(done + counts).int(),
            num_reqs=len(counts),
            num_actual_tokens=int(starts[-1]) + pad,
            max_query_len=int(counts.max()),
            max_seq_len=int((done + counts).max()),
            block_table_tensor=table,
            slot_mapping=torch.arange(int(starts[-1]) + pad),
        )
        return self.builder.build(
            0,
            common,
            torch.tensor([one.accepted for one in who] + [1] * pad).int(),
            torch.tensor([drafts for _, _, drafts in batch] + [-1] * pad).int(),
        )

    def step(self, *batch: tuple[int, ...], pad: int = 0) -> torch.Tensor:
        """Do (request, rows, drafts or -1, drafts that are right) at once, and check all outputs.

        Returns the output of all requests, one after the other.
        """
        kept = [1 + one[3] if one[2] >= 0 else one[1] for one in batch]
        metadata = self.metadata([one[:3] for one in batch], pad)
        parts = [
            self.requests[one[0]].rows(one[1], keep, self.chance)
            for one, keep in zip(batch, kept, strict=True)
        ]
        mixed, a, b = (torch.cat(x) for x in zip(*parts, strict=True))
        total, spare = len(mixed), pad + 2  # the last two rows are not of the batch
        mixed, a, b = (F.pad(x, (0, 0, 0, spare), value=torch.nan) for x in (mixed, a, b))
        out = torch.full((total + spare, kit.HV, kit.DV), UNTOUCHED, dtype=self.dtype)
        idle = {n + 1 for n in range(len(self.requests))} - {one[0] + 1 for one in batch} | {0}
        before = {n: self.lines(n) for n in idle}
        with kit.step([self.layer], metadata):
            self.layer._forward_core(mixed, b, a, out)
        for n in idle:
            assert_close(self.lines(n), before[n], rtol=0, atol=0, equal_nan=True)
        assert (out[total + pad :] == UNTOUCHED).all()
        first, got = 0, []
        for (number, count, drafts, *_), keep in zip(batch, kept, strict=True):
            request = self.requests[number]
            wanted = request.outputs[request.done : request.done + keep]
            got.append(out[first : first + keep])
            assert_close(got[-1].float(), wanted, rtol=0, atol=self.atol)
            request.done += keep
            request.accepted = keep if drafts >= 0 else 1
            line = (number + 1) * LINES + request.accepted - 1
            state = request.states[request.done - 1]
            assert_close(self.states[line], state, rtol=0, atol=self.atol)
            first += count
        return torch.cat(got)

    def lines(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        at = slice(number * LINES, (number + 1) * LINES)
        return self.conv[at].clone(), self.states[at].clone()


def test_prompts_of_one_to_some_chunks() -> None:
    """No request has a state yet, and what lies in its lines is not a number."""
    Session([70, 1, 3, 130, 64]).step(*[(n, c, -1) for n, c in enumerate([70, 1, 3, 130, 64])])


def test_prompts_in_parts() -> None:
    """The second part goes on where the first ended, beside a request that begins."""
    session = Session([100, 70, 9])
    session.step((0, 33, -1), (1, 2, -1))
    session.step((1, 66, -1), (2, 9, -1), (0, 60, -1))
    session.step((0, 7, -1), (1, 2, -1))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("pad", [0, 3])
def test_decoding(packed, pad) -> None:
    """With padding as in a full graph, whose rows are not numbers and go nowhere."""
    session = Session([20, 8, 6], packed=packed, graphs=pad > 0)
    session.step((0, 17, -1), (1, 5, -1), (2, 3, -1))
    session.step((0, 1, -1), (1, 1, -1), (2, 1, -1), pad=pad)
    session.step((2, 1, -1), (0, 1, -1), pad=pad)
    session.step((1, 1, -1), (2, 1, -1), (0, 1, -1), pad=pad)


def test_packed_decoding_is_the_same() -> None:
    """In bfloat16 too, within 1e-3."""
    outputs = []
    for packed in (False, True):
        session = Session([20, 8], torch.bfloat16, packed=packed)
        session.step((0, 17, -1), (1, 5, -1))
        outputs.append(torch.cat([session.step((0, 1, -1), (1, 1, -1)) for _ in range(3)]))
    assert_close(*outputs, rtol=0, atol=1e-3)


@pytest.mark.parametrize("pad", [0, 2])
def test_speculation(pad) -> None:
    """Whatever was accepted, the next step starts from the state after it."""
    session = Session([40, 30], graphs=pad > 0)
    session.step((0, 17, -1), (1, 5, -1))
    for first, second in [(0, 2), (2, 0), (1, 1), (2, 2), (0, 0)]:
        session.step((0, 3, 2, first), (1, 3, 2, second), pad=pad)


def test_speculation_beside_prompts() -> None:
    """In any order; a single token beside drafts counts as a prompt."""
    session = Session([40, 80, 30, 12])
    session.step((0, 5, -1), (2, 7, -1))
    session.step((0, 3, 2, 1), (1, 70, -1), (2, 3, 2, 2))
    session.step((3, 5, -1), (2, 2, 1, 1), (1, 1, -1), (0, 3, 2, 0))
    session.step((1, 3, 2, 2), (3, 7, -1), (0, 1, 0, 0), (2, 3, 2, 0))
