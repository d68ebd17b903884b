"""The recurrent gated delta rule and its gates in plain torch: hand numbers and odd batches."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from ascend_runtime.reference import gdn


def recurrence(q, k, v, g, beta, scale, state) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One sequence in float64: outputs [T, HV, V], and the state after each token."""
    q, k = (x.double() / (x.double().square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    shared = v.shape[1] // k.shape[1]
    q, k = (x.repeat_interleave(shared, 1) for x in (q, k))
    out, states, state = [], [], state.double()
    for t in range(len(q)):
        decay = g[t].double().exp()
        state = state * (decay[:, None, None] if decay.dim() == 1 else decay[:, None, :])
        new = v[t].double() - torch.einsum("hvk,hk->hv", state, k[t])
        strong = beta[t].double()
        new = new * (strong[:, None] if strong.dim() == 1 else strong)
        state = state + torch.einsum("hv,hk->hvk", new, k[t])
        out.append(scale * torch.einsum("hvk,hk->hv", state, q[t]))
        states.append(state)
    return torch.stack(out), states


def draw(tokens: int, sizes=(2, 4, 8, 8), lines: int = 9, rows: int = 1) -> dict:
    heads, value_heads, keys, values = sizes
    generator = torch.Generator().manual_seed(tokens)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "q": normal(rows, tokens, heads, keys),
        "k": normal(rows, tokens, heads, keys),
        "v": normal(rows, tokens, value_heads, values),
        "g": -normal(rows, tokens, value_heads).abs(),
        "beta": normal(rows, tokens, value_heads).sigmoid(),
        "scale": 0.25,
        "initial_state": normal(lines, value_heads, values, keys),
        "use_qk_l2norm_in_kernel": True,
    }


def alone(call: dict, tokens: slice, line: int, row: int = 0):
    given = [call[name][row, tokens] for name in ("q", "k", "v", "g", "beta")]
    return recurrence(*given, call["scale"], call["initial_state"][line])


def close(given: torch.Tensor, wanted: torch.Tensor) -> None:
    assert_close(given.double(), wanted, rtol=1e-5, atol=1e-5)


def scalar(v: list[float], state: torch.Tensor, **rest):
    one = torch.ones(1, len(v), 1, 1)
    values = torch.tensor(v).view(1, -1, 1, 1)
    g, beta = one[..., 0] * math.log(0.5), one[..., 0] / 2
    return gdn.fused_recurrent_fwd(one, one, values, g, beta, 1.0, state, **rest)


def test_numbers_by_hand() -> None:
    """4 -> 2, of which v - 2 is halved; o = h."""
    lines = torch.tensor([0])
    for v, wanted in ((2.0, 2), (6.0, 4)):
        o, state = scalar([v], torch.full((1, 1, 1, 1), 4.0), ssm_state_indices=lines)
        assert o.item() == pytest.approx(wanted) and state.item() == pytest.approx(wanted)
    o, state = scalar([6.0, 0.0], torch.full((1, 1, 1, 1), 4.0), ssm_state_indices=lines)
    assert_close(o.flatten(), torch.tensor([4.0, 1.0]))
    assert state.item() == pytest.approx(1)


@pytest.mark.parametrize("sizes", [(2, 4, 8, 8), (2, 4, 8, 16), (1, 3, 24, 40)])
@pytest.mark.parametrize("flat", [True, False], ids=["with starts", "rows"])
def test_decode_writes_the_lines_given_and_no_other(sizes, flat) -> None:
    call = draw(3, sizes) if flat else draw(1, sizes, rows=3)
    cache, lines = call["initial_state"].clone(), torch.tensor([5, -1, 2])
    starts = torch.arange(4) if flat else None
    call["initial_state"] = cache.clone()
    o, state = gdn.fused_recurrent_fwd(**call, ssm_state_indices=lines, cu_seqlens=starts)
    assert state is call["initial_state"]
    call["initial_state"], wrote = cache, state
    for n, line in enumerate(lines.tolist()):
        if line < 0:
            assert not o.flatten(0, 1)[n].any()
            continue
        tokens, row = (slice(n, n + 1), 0) if flat else (slice(None), n)
        out, states = alone(call, tokens, line, row)
        close(o.flatten(0, 1)[n : n + 1], out)
        close(wrote[line], states[-1])
    untouched = [line for line in range(9) if line not in (5, 2)]
    assert torch.equal(wrote[untouched], cache[untouched])


def test_drafts_start_from_the_token_accepted_last() -> None:
    call = draw(7)
    cache = call["initial_state"].clone()
    lines = torch.tensor([[1, 2, 3], [6, 7, 8], [4, -1, 5]])
    o, wrote = gdn.fused_recurrent_fwd(
        **call,
        cu_seqlens=torch.tensor([0, 3, 4, 7]),
        ssm_state_indices=lines,
        num_accepted_tokens=torch.tensor([2, 3, 1]),
    )
    call["initial_state"] = cache
    for n, (tokens, line) in enumerate(((slice(0, 3), 2), (slice(3, 4), 8), (slice(4, 7), 4))):
        out, states = alone(call, tokens, line)
        close(o[0, tokens], out)
        for target, state in zip(lines[n].tolist(), states, strict=False):
            if target >= 0:
                close(wrote[target], state)
    assert torch.equal(wrote[[0, 7, 8]], cache[[0, 7, 8]])


def test_sequence_whose_first_line_is_padding_is_skipped() -> None:
    call = draw(2)
    cache = call["initial_state"].clone()
    lines = torch.tensor([[-1, 3]])
    o, wrote = gdn.fused_recurrent_fwd(
        **call, cu_seqlens=torch.tensor([0, 2]), ssm_state_indices=lines
    )
    assert not o.any() and torch.equal(wrote, cache)


def test_empty_sequences_and_batches() -> None:
    call = draw(2)
    cache = call["initial_state"].clone()
    lines = torch.tensor([4, 1, 6, 7])
    o, wrote = gdn.fused_recurrent_fwd(
        **call, cu_seqlens=torch.tensor([0, 0, 1, 1, 2]), ssm_state_indices=lines
    )
    assert torch.equal(wrote[[4, 6]], cache[[4, 6]])
    assert not torch.equal(wrote[1], cache[1]) and o.all()
    empty = draw(0)
    none = torch.zeros(0, dtype=torch.int32)
    o, _ = gdn.fused_recurrent_fwd(
        **empty, cu_seqlens=torch.zeros(1, dtype=torch.int32), ssm_state_indices=none
    )
    assert o.shape == (1, 0, 4, 8)


def test_states_of_all_tokens_without_a_cache() -> None:
    call = draw(3)
    o, states = gdn.fused_recurrent_fwd(
        **call, inplace_final_state=False, cu_seqlens=torch.tensor([0, 2, 3])
    )
    assert states.shape == (3, 4, 8, 8)
    for tokens, line in ((slice(0, 2), 0), (slice(2, 3), 2)):
        out, wanted = alone(call, tokens, line)
        close(o[0, tokens], out)
        close(states[tokens], torch.stack(wanted))


def test_pages_with_gaps_are_written_in_place() -> None:
    """A copy of the cache that is made contiguous would get the states instead."""
    call, close_by = draw(2), draw(2)
    pages = torch.full((9, 4 * 8 * 8 + 5), 7.0)
    cache = pages[:, : 4 * 8 * 8].view(9, 4, 8, 8)
    cache.copy_(call["initial_state"])
    call["initial_state"] = cache
    where = {"ssm_state_indices": torch.tensor([8, 0]), "cu_seqlens": torch.tensor([0, 1, 2])}
    _, wrote = gdn.fused_recurrent_fwd(**call, **where)
    _, wanted = gdn.fused_recurrent_fwd(**close_by, **where)
    assert wrote is cache and torch.equal(cache, wanted)
    assert (pages[:, -5:] == 7).all()


def test_state_is_kept_in_float32_between_tokens() -> None:
    tiny = 2.0**-10
    state = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    one, zero = torch.ones(1, 4, 1, 1), torch.zeros(1, 4, 1)
    k = torch.full_like(one, tiny)
    o, _ = gdn.fused_recurrent_fwd(
        one, k, one * 2, zero, zero + 1, 1.0, state, ssm_state_indices=torch.tensor([0])
    )
    assert_close(o.flatten(), 1 + torch.arange(1, 5) * 2 * tiny, rtol=0, atol=2e-5)


def launch(call: dict, **rest) -> tuple[torch.Tensor, torch.Tensor]:
    o = torch.full_like(call["v"], 7.0)
    names = {"initial_state": "h0", "use_qk_l2norm_in_kernel": "USE_QK_L2NORM_IN_KERNEL"}
    given = {names.get(name, name): value for name, value in call.items()} | {
        "o": o,
        "ht": call["initial_state"],
        "cu_seqlens": None,
        "num_accepted_tokens": None,
        "INPLACE_FINAL_STATE": True,
        "IS_KDA": False,
        "num_warps": 1,
    }
    gdn.fused_recurrent_kernel(**(given | rest))
    return o, call["initial_state"]


@pytest.mark.parametrize("headwise", [False, True])
def test_kernel_with_a_decay_of_each_key(headwise) -> None:
    call = draw(3)
    cache = call["initial_state"].clone()
    call["g"] = -torch.rand(1, 3, 4, 8)
    if headwise:
        call["beta"] = torch.rand(1, 3, 4, 8)
    lines = torch.tensor([3, 1])
    starts = torch.tensor([0, 1, 3])
    o, wrote = launch(call, IS_KDA=True, cu_seqlens=starts, ssm_state_indices=lines)
    call["initial_state"] = cache
    for tokens, line in ((slice(0, 1), 3), (slice(1, 3), 1)):
        out, states = alone(call, tokens, line)
        close(o[0, tokens], out)
        close(wrote[line], states[-1])


def test_kernel_writes_no_token_of_no_sequence() -> None:
    starts, lines = torch.tensor([0, 1]), torch.tensor([0])
    o, _ = launch(draw(3), cu_seqlens=starts, ssm_state_indices=lines)
    assert (o[:, 1:] == 7).all() and not (o[:, 0] == 7).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ssm_state_indices": None}, "in place without ssm_state_indices"),
        ({"initial_state": torch.ones(9, 4, 8, 16)}, r"must be \[lines, 4, 8, 8\]"),
        ({"cu_seqlens": torch.arange(3), "rows": 2}, "must be 1, not 2"),
        ({"q": torch.ones(1, 2, 3, 8), "k": torch.ones(1, 2, 3, 8)}, "cannot share 3 key heads"),
    ],
)
def test_what_is_refused(change, message) -> None:
    call = draw(2, rows=change.pop("rows", 1)) | {"ssm_state_indices": torch.tensor([0, 1])}
    with pytest.raises(ValueError, match=message):
        gdn.fused_recurrent_fwd(**(call | change))


GATES = {
    "A_log": torch.tensor([0.0, 1.0]),
    "a": torch.tensor([[0.0, 1.0], [25.0, -3.0]]),
    "b": torch.tensor([[0.0, 2.0], [-1.0, 0.5]]),
    "dt_bias": torch.tensor([0.0, 1.0]),
}


def test_gates_by_hand() -> None:
    g, beta = gdn.gating(**GATES)
    assert_close(g, torch.tensor([[[-0.693147, -5.781590], [-25.0, -0.345026]]]))
    assert_close(beta, torch.tensor([[[0.5, 0.880797], [0.268941, 0.622459]]]))
    _, doubled = gdn.olmo_gating(**GATES, allow_neg_eigval=True)
    assert_close(doubled, 2 * beta)
    assert_close(gdn.olmo_gating(**GATES), (g, beta))


def test_softplus_of_other_shapes() -> None:
    g, _ = gdn.gating(**GATES, beta=2.0, threshold=1.0)
    bent = math.log(1 + math.exp(-4)) / 2
    wanted = [[-math.log(2) / 2, -2 * math.e], [-25, -bent * math.e]]
    assert_close(g, torch.tensor([wanted]))


@pytest.mark.parametrize("function", [gdn.gating, gdn.olmo_gating])
def test_gates_of_no_tokens_and_dtypes(function) -> None:
    empty = torch.zeros(0, 2, dtype=torch.bfloat16)
    g, beta = function(**(GATES | {"a": empty, "b": empty}))
    assert g.shape == beta.shape == (1, 0, 2) and g.dtype == torch.float32
    assert beta.dtype == (torch.bfloat16 if function is gdn.gating else torch.float32)


def packed(rows: int = 3, dtype: torch.dtype = torch.float32, sizes=(2, 4, 8, 16)) -> dict:
    heads, value_heads, keys, values = sizes
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).to(dtype)

    width = 2 * heads * keys + value_heads * values
    return {
        "mixed_qkv": normal(rows, width + 3)[:, :width],
        "a": normal(rows, value_heads + 1)[:, :value_heads],
        "b": normal(rows, value_heads + 1)[:, :value_heads],
        "A_log": normal(value_heads),
        "dt_bias": normal(value_heads),
        "scale": 0.5,
        "initial_state": normal(rows + 2, value_heads, values, keys),
        "out": torch.full((rows, 1, value_heads, values), 7.0, dtype=dtype),
        "ssm_state_indices": torch.tensor([4, -1, 0], dtype=torch.int32)[:rows],
        "use_qk_l2norm_in_kernel": True,
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_packed_decode_is_the_parts(dtype) -> None:
    call = packed(dtype=dtype)
    cache = call["initial_state"].clone()
    g, beta = gdn.gating(*(call[name] for name in ("A_log", "a", "b", "dt_bias")))
    assert beta.dtype == dtype
    q, k, v = call["mixed_qkv"].split([16, 16, 64], 1)
    o, wanted = gdn.fused_recurrent_fwd(
        q.reshape(1, 3, 2, 8),
        k.reshape(1, 3, 2, 8),
        v.reshape(1, 3, 4, 16),
        g,
        beta,
        0.5,
        cache,
        True,
        torch.arange(4),
        call["ssm_state_indices"],
        None,
        True,
    )
    out, state = gdn.packed_decode(**call)
    assert out is call["out"] and state is call["initial_state"]
    assert torch.equal(state, wanted) and torch.equal(out[:, 0], o[0])
    assert not out[1].any()


BAD = {
    "mixed_qkv must have 2": ("mixed_qkv", lambda x: x[None]),
    "mixed_qkv must be contiguous": ("mixed_qkv", lambda x: x.T.contiguous().T),
    "a must have 2": ("a", lambda x: x[0]),
    "b must be contiguous": ("b", lambda x: x.T.contiguous().T),
    "b must be .3, 4.": ("b", lambda x: x[:2]),
    "A_log must be .4.": ("A_log", lambda x: x[:3]),
    "dt_bias must have 1": ("dt_bias", lambda x: x[None]),
    "dt_bias must be contiguous": ("dt_bias", lambda x: x.repeat_interleave(2)[::2]),
    "ssm_state_indices must have 1": ("ssm_state_indices", lambda x: x[None]),
    "ssm_state_indices must be .3.": ("ssm_state_indices", lambda x: x[:2]),
    "initial_state must have 4": ("initial_state", lambda x: x[0]),
    "initial_state must be contiguous": ("initial_state", lambda x: x.mT),
    "out must be contiguous": ("out", lambda x: x.mT.contiguous().mT),
    "out must be .3, 1, 4, 16.": ("out", lambda x: x[:, 0]),
    "out is on another device": ("out", lambda x: x.to("meta")),
    "a is on another device": ("a", lambda x: x.to("meta")),
    "95 columns": ("mixed_qkv", lambda x: x[:, :95]),
    "64 columns": ("mixed_qkv", lambda x: x[:, :64]),
    "112 columns": ("mixed_qkv", lambda x: torch.ones(3, 112)),
}


@pytest.mark.parametrize("message", BAD)
def test_packed_decode_refuses(message) -> None:
    name, change = BAD[message]
    call = packed()
    call[name] = change(call[name])
    with pytest.raises(ValueError, match=message):
        gdn.packed_decode(**call)


@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 4)], ids=str)
def test_sigmoid_gating_is_gates_and_rule(shape) -> None:
    call, gates = draw(3), packed()
    del call["g"], call["beta"]
    cache = call["initial_state"].clone()
    a, b = (gates[name].reshape(shape) for name in "ab")
    where = {"cu_seqlens": torch.tensor([0, 2, 3]), "ssm_state_indices": torch.tensor([3, 1])}
    o, state = gdn.sigmoid_gating_update(gates["A_log"], a, b, gates["dt_bias"], **call, **where)
    assert state is call["initial_state"]
    g, beta = gdn.olmo_gating(gates["A_log"], a.view(3, 4), b.view(3, 4), gates["dt_bias"])
    call["initial_state"] = cache
    assert_close((o, state), gdn.fused_recurrent_fwd(**call, g=g, beta=beta, **where))


def test_sigmoid_gating_does_not_round_its_gates() -> None:
    """In bfloat16 sigmoid(b) would be 0.6211 and not 0.6225."""
    one = torch.ones(1, 1, 1, 1, dtype=torch.bfloat16)
    b = torch.full((1, 1), 0.5, dtype=torch.bfloat16)
    low, state = torch.full((1, 1), -80.0), torch.zeros(1, 1, 1, 1)
    gdn.sigmoid_gating_update(
        low[0],
        low,
        b,
        low[0],
        one,
        one,
        one,
        initial_state=state,
        ssm_state_indices=torch.tensor([0]),
    )
    assert state.item() == pytest.approx(0.622459, rel=1e-6)


def test_sigmoid_gating_with_a_decay_of_each_key() -> None:
    """Each token has its own row of `a`, where vLLM's kernel moves on by HV, not HV * K."""
    call, heads, keys = draw(2), 4, 8
    del call["g"]
    A_log, dt_bias = torch.randn(heads), torch.randn(heads, keys)
    a, b = torch.randn(1, 2, heads, keys), torch.randn(1, 2, heads)
    cache = call["initial_state"].clone()
    del call["beta"]
    o, state = gdn.sigmoid_gating_update(
        A_log, a, b, dt_bias, **call, ssm_state_indices=torch.tensor([3]), is_kda=True
    )
    call["initial_state"] = cache
    call["g"] = -A_log.exp()[:, None] * torch.nn.functional.softplus(a + dt_bias)
    call["beta"] = b.sigmoid()
    out, states = alone(call, slice(0, 2), 3)
    close(o[0], out)
    close(state[3], states[-1])


def test_sigmoid_gating_checks_its_scale() -> None:
    call = draw(1)
    gates = [torch.zeros(4), torch.zeros(1, 4), torch.zeros(1, 4), torch.zeros(4)]
    for name in ("g", "beta"):
        del call[name]
    with pytest.raises(AssertionError, match="positive"):
        gdn.sigmoid_gating_update(*gates, **(call | {"scale": 0.0}))
    with pytest.raises(ValueError, match="initial_state"):
        gdn.sigmoid_gating_update(*gates, **(call | {"initial_state": None}))
