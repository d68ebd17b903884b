"""The core of gated delta nets: each token has its own gates, and no row too many is written."""

from __future__ import annotations

from types import ModuleType

import gdn_kit as kit
import pytest
import torch
from test_gdn_argsort import build
from vllm.distributed import parallel_state

PAD = 3
MIXED = [
    ([1, 3], [-1, 2]),
    ([50, 1, 3], [-1, -1, 2]),
    ([3, 1, 2], [2, -1, -1]),
    ([3, 1, 3, 4, 2], [2, -1, 2, -1, 1]),
]
WHOLE = [([3, 2], [2, 1]), ([50, 1, 3], [-1, -1, -1]), ([1, 1, 1], [-1, -1, -1])]


@pytest.fixture(scope="module")
def edited() -> ModuleType:
    return kit.edited()


@pytest.fixture(scope="module")
def upstream(base) -> ModuleType:
    return kit.upstream(base.root)


class Batch:
    """Requests of random tokens, followed by rows of padding that are not numbers."""

    def __init__(self, query_lens: list[int], drafts: list[int]) -> None:
        generator = torch.Generator().manual_seed(sum(query_lens))

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator)

        def rows(width: int) -> torch.Tensor:
            return torch.cat([random(self.tokens, width), torch.full((PAD, width), torch.nan)])

        self.query_lens = query_lens
        self.tokens = sum(query_lens)
        self.metadata = build(query_lens, drafts)
        self.mixed, self.a, self.b = rows(kit.QKV), rows(kit.HV), rows(kit.HV)
        self.states = random(len(query_lens) * 4, kit.HV, kit.DV, kit.DK)

    def run(self, module: ModuleType) -> tuple[torch.Tensor, list[int]]:
        """The output, of which padding is filled with sevens, and the rows each kernel had."""
        layer, kernels = kit.core(module, self.states.clone())
        out = torch.full((self.tokens + PAD, kit.HV, kit.DV), 7.0)
        with kit.step([layer], self.metadata):
            layer._forward_core(self.mixed, self.b, self.a, out)
        return out, kernels.rows

    def expected(self) -> torch.Tensor:
        """Each request by itself, from the line of states that is its first."""
        out = torch.full((self.tokens + PAD, kit.HV, kit.DV), 7.0)
        end = 0
        for request, count in enumerate(self.query_lens):
            rows = slice(end, end := end + count)
            q, k, v = self.mixed[rows].split([kit.HK * kit.DK, kit.HK * kit.DK, kit.HV * kit.DV], 1)
            q, k = (x.reshape(count, kit.HK, kit.DK) for x in (q, k))
            g, beta = kit.gates(kit.A_LOG, self.a[rows], self.b[rows], kit.DT_BIAS)
            state = self.states[request * 4]
            v = v.reshape(count, kit.HV, kit.DV)
            out[rows], _ = kit.delta_rule(q, k, v, g, beta, state)
        return out


@pytest.mark.parametrize(("query_lens", "drafts"), MIXED + WHOLE)
def test_every_request_is_as_it_is_alone(edited, query_lens, drafts) -> None:
    batch = Batch(query_lens, drafts)
    out, _ = batch.run(edited)
    torch.testing.assert_close(out, batch.expected(), rtol=0, atol=1e-5)


def test_upstream_gives_speculative_tokens_the_gates_of_others(upstream) -> None:
    """They are right only if their requests come first."""
    wrong = {}
    for query_lens, drafts in MIXED + WHOLE:
        batch = Batch(query_lens, drafts)
        bad = (batch.run(upstream)[0] - batch.expected()).abs().amax(dim=(1, 2)) > 1e-3
        if bad.any():
            wrong[tuple(query_lens)] = bad.nonzero()[:, 0].tolist()
    assert wrong == {
        (1, 3): [1, 2, 3],
        (50, 1, 3): [51, 52, 53],
        (3, 1, 3, 4, 2): [4, 5, 6, 11, 12],
    }


@pytest.mark.parametrize(("query_lens", "drafts"), [MIXED[2], *WHOLE])
def test_where_upstream_is_right_every_bit_is_the_same(edited, upstream, query_lens, drafts):
    batch = Batch(query_lens, drafts)
    (ours, rows), (theirs, their_rows) = batch.run(edited), batch.run(upstream)
    assert torch.equal(ours, theirs)
    assert rows == their_rows


@pytest.fixture
def flash_comm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_state, "_TP", type("Group", (), {"world_size": 2}))
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1")


@pytest.mark.parametrize(
    ("query_lens", "drafts", "rows"),
    [
        ([50, 1, 3], [-1, -1, -1], [57]),
        ([3, 2], [2, 1], [8]),
        ([1, 1, 1], [-1, -1, -1], [3]),  # a row for each state
        ([50, 1, 3], [-1, -1, 2], [3, 51]),  # by their indices
    ],
)
def test_gathered_rows_are_cut_when_written(edited, flash_comm, query_lens, drafts, rows) -> None:
    batch = Batch(query_lens, drafts)
    out, found = batch.run(edited)
    assert found == rows
    torch.testing.assert_close(out, batch.expected(), rtol=0, atol=1e-5)


def test_gathered_rows_are_cut_before_the_core_without_flash_comm(edited, upstream) -> None:
    batch = Batch([50, 1, 3], [-1, -1, -1])
    assert batch.run(edited)[1] == batch.run(upstream)[1] == [54]
