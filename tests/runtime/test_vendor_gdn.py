"""The update of gated delta nets by torch_npu's operator: how it is called, and for what."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.testing import assert_close

from ascend_runtime import dispatch
from ascend_runtime.reference import gdn as reference
from ascend_runtime.vendor import gdn as vendor

SCHEMA = (
    Path(__file__)
    .with_name("torch_npu_2.9.0_schemas.txt")
    .read_text("utf-8")
    .removeprefix("npu::")
    .strip()
)
BF16 = torch.bfloat16


def stand_in(
    query,
    key,
    value,
    state,
    beta=None,
    scale=None,
    actual_seq_lengths=None,
    ssm_state_indices=None,
    num_accepted_tokens=None,
    g=None,
    gk=None,
):
    """The operator as CANN documents it, with a line for each token."""
    assert gk is None
    tokens, heads = value.shape[:2]
    for x in (query, key, value, beta, state):
        assert x.dtype == BF16 and x.is_contiguous()
    assert g.dtype == torch.float32 and g.shape == beta.shape == (tokens, heads)
    for x in (actual_seq_lengths, ssm_state_indices):
        assert x.dtype == torch.int32 and x.dim() == 1
    assert len(ssm_state_indices) == tokens and int(ssm_state_indices.min()) >= 0
    assert num_accepted_tokens is None or num_accepted_tokens.dtype == torch.int32
    out = torch.zeros_like(value)
    first = 0
    for n, length in enumerate(actual_seq_lengths.tolist()):
        lines = ssm_state_indices[first : first + length]
        accepted = num_accepted_tokens if num_accepted_tokens is None else num_accepted_tokens[n:]
        part = slice(first, first + length)
        args = [x[None, part] for x in (query, key, value, g, beta)]
        where = {"ssm_state_indices": lines[None], "num_accepted_tokens": accepted}
        o, _ = reference.fused_recurrent_fwd(*args, scale, state, **where)
        out[part] = o[0]
        first += length
    return out


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A torch_npu with the operator, whose calls go through its schema; and a list of them."""
    seen = []
    library = torch.library.Library("npu_stand_in", "FRAGMENT")
    library.define(SCHEMA)
    name = SCHEMA.partition("(")[0]

    def called(*args, **kwargs):
        seen.append(name)
        return stand_in(*args, **kwargs)

    library.impl(name, called, "CPU")
    module = SimpleNamespace(**{name: getattr(torch.ops.npu_stand_in, name)})
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    yield seen
    library._destroy()


def call(count: int, steps: int, state: torch.dtype = BF16, extra: int = 1) -> dict:
    generator = torch.Generator().manual_seed(count)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(BF16)

    tokens, lines = count * steps, torch.randperm(40, generator=generator).int() + 1
    return {
        "A_log": normal(4).float(),
        "a": normal(tokens, 4),
        "b": normal(tokens, 4),
        "dt_bias": normal(4),
        "q": normal(1, tokens, 2, 8),
        "k": normal(1, tokens, 2, 8),
        "v": normal(1, tokens, 4, 16),
        "initial_state": normal(42, 4, 16, 8).to(state),
        "cu_seqlens": torch.arange(0, tokens + 1, steps, dtype=torch.int32),
        # Batches are padded in graphs, so the table has more rows.
        "ssm_state_indices": lines[: (count + extra) * steps].view(-1, steps)
        if steps > 1
        else lines[: count + extra],
        "num_accepted_tokens": torch.arange(count) % steps + 1 if steps > 1 else None,
        "use_qk_l2norm_in_kernel": True,
    }


@pytest.mark.parametrize(("count", "steps"), [(3, 1), (3, 2), (2, 4)])
def test_operator_does_what_the_definition_says(operator, count, steps) -> None:
    given = call(count, steps)
    assert vendor.sigmoid_gating_update_fits(**given)
    wanted = reference.sigmoid_gating_update(
        **(given | {"initial_state": given["initial_state"].clone()})
    )
    out, state = vendor.sigmoid_gating_update(**given)
    assert state is given["initial_state"] and out.shape == given["v"].shape
    assert len(operator) == 1
    assert_close((out, state), wanted, rtol=2e-2, atol=2e-2)


def test_padding_goes_to_the_null_block(operator) -> None:
    given = call(3, 1)
    before = given["initial_state"].clone()
    lines = given["ssm_state_indices"].tolist()
    given["ssm_state_indices"][1] = -1
    _, state = vendor.sigmoid_gating_update(**given)
    changed = (state != before).flatten(1).any(1).nonzero().flatten().tolist()
    assert changed == sorted([0, lines[0], lines[2]])


def cut(given: dict, name: str, change) -> dict:
    return given | {name: change(given[name])}


REFUSED = {
    "float32 states": lambda: call(3, 1, torch.float32),
    "float16 queries": lambda: cut(call(3, 1), "q", lambda x: x.half()),
    "no states": lambda: call(3, 1) | {"initial_state": None},
    "pages with gaps": lambda: cut(
        call(3, 1), "initial_state", lambda x: torch.cat([x, x], 1)[:, :4]
    ),
    "states [K, V]": lambda: cut(call(3, 1), "initial_state", lambda x: x.mT.contiguous()),
    "a decay of each key": lambda: call(3, 1) | {"is_kda": True},
    "not in place": lambda: call(3, 1) | {"inplace_final_state": False},
    "no starts": lambda: call(3, 1) | {"cu_seqlens": None},
    "no lines": lambda: call(3, 1) | {"ssm_state_indices": None},
    "too few lines": lambda: call(3, 1, extra=-1),
    "fewer tokens than lines": lambda: cut(call(2, 4), "cu_seqlens", lambda x: x[:2]),
    "no sequences": lambda: call(0, 1),
    "more than eight drafts": lambda: call(2, 9),
    "drafts of one line": lambda: call(3, 1) | {"num_accepted_tokens": torch.ones(3)},
    "rows": lambda: call(3, 1)
    | {n: x.transpose(0, 1) for n, x in call(3, 1).items() if n in ("q", "k", "v")},
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_left_to_the_kernel(why) -> None:
    assert vendor.sigmoid_gating_update_fits(**call(3, 1))
    assert not vendor.sigmoid_gating_update_fits(**REFUSED[why]())


def test_dispatch_takes_it_by_the_states(operator) -> None:
    @dispatch.op("gdn.sigmoid_gating_update")
    def theirs(*args, **kwargs):
        raise AssertionError("nobody asked for vLLM's")

    with dispatch.override("vendor", "gdn.sigmoid_gating_update"):
        theirs(**call(3, 1))
        assert len(operator) == 1
        theirs(**call(3, 1, torch.float32))
    assert len(operator) == 1
