"""The causal convolutions, defined: numbers worked out by hand, and a loop over tokens."""

from __future__ import annotations

import pytest
import torch

from ascend_runtime.reference import conv

W3 = torch.tensor([[1.0, 10, 100]])


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def prefill(x, state, flag, weight=W3, lines=(0,), ends=None):
    states = torch.tensor(state)[:, None]
    y = conv.causal_conv1d_fn(
        torch.tensor([x]),
        weight,
        None,
        states,
        ints(*(ends or [0, len(x)])),
        ints(*lines),
        torch.tensor(flag),
        None,
    )
    return y[0].tolist(), states[:, 0].tolist()


def test_prefill():
    assert prefill([3.0, 4], [[1.0, 2]], [True]) == ([321, 432], [[3, 4]])
    assert prefill([3.0, 4], [[1.0, 2]], [False]) == ([300, 430], [[3, 4]])
    assert prefill([3.0], [[1.0, 2]], [True]) == ([321], [[2, 3]])
    assert prefill([3.0], [[1.0, 2]], [False]) == ([300], [[0, 3]])


def test_stale_state_is_not_read():
    nan = float("nan")
    assert prefill([3.0, 4], [[nan, nan]], [False]) == ([300, 430], [[3, 4]])


def test_padding_between_sequences_keeps_places_and_lines():
    y, states = prefill(
        [3.0, 4, 7, 7, 7, 5],
        [[1.0, 2], [8, 9], [6, 6]],
        [True, True, True],
        lines=(0, -1, 1),
        ends=[0, 2, 5, 6],
    )
    assert y[:2] == [321, 432] and y[5] == 8 + 90 + 500
    assert states == [[3, 4], [9, 5], [6, 6]]


def test_sequence_without_tokens_keeps_its_line():
    y, states = prefill([3.0, 4], [[1.0, 2], [8, 9]], [True, True], lines=(0, 1), ends=[0, 0, 2])
    assert y == [8 + 90 + 300, 9 + 30 + 400] and states == [[1, 2], [3, 4]]
    y, states = prefill([], [[1.0, 2]], [True], lines=(0,), ends=[0, 0])
    assert y == [] and states == [[1, 2]]


def test_arguments_that_may_be_missing():
    states = torch.tensor([[[1.0, 2]], [[3, 4]]])
    y = conv.causal_conv1d_fn(
        torch.tensor([[5.0, 6]]), W3, torch.tensor([0.5]), states, ints(0, 1, 2), activation=None
    )
    assert y.tolist() == [[500.5, 600.5]] and states[:, 0].tolist() == [[0, 5], [0, 6]]


@pytest.mark.parametrize("width", [1, 5])
def test_widths_that_vllm_has_not(width):
    with pytest.raises(ValueError, match=f"{width} taps; from 2 to 4"):
        conv.causal_conv1d_update(torch.ones(1, 2), torch.ones(1, 2, 9), torch.ones(2, width))


def test_decode_is_a_prefill_of_one():
    states = torch.tensor([[[7.0, 7]], [[1.0, 2]]])
    x = torch.tensor([[3.0]])
    y = conv.causal_conv1d_update(x, states, W3, conv_state_indices=ints(1))
    assert y.tolist() == [[321]] and x.tolist() == [[321]]
    assert states[:, 0].tolist() == [[7, 7], [2, 3]]


def test_speculative_update():
    states = torch.tensor([[[1.0, 2, 3, 4]]])
    y = conv.causal_conv1d_update(
        torch.tensor([[5.0], [6], [7]]),
        states,
        W3,
        conv_state_indices=ints(0),
        num_accepted_tokens=ints(2),
        query_start_loc=ints(0, 3),
        max_query_len=3,
    )
    assert y.flatten().tolist() == [532, 653, 765] and states.flatten().tolist() == [3, 5, 6, 7]


def test_update_of_padding_and_of_nothing():
    states = torch.tensor([[[1.0, 2]], [[5.0, 6]]])
    x = torch.tensor([[3.0], [4.0]])
    conv.causal_conv1d_update(
        x,
        states,
        W3,
        conv_state_indices=ints(-1, 0, 1),
        query_start_loc=ints(0, 1, 1, 2),
        max_query_len=1,
    )
    assert x.tolist() == [[3], [5 + 60 + 400]]
    assert states[:, 0].tolist() == [[1, 2], [6, 4]]


def test_update_without_indices_and_of_three_dimensions():
    states = torch.tensor([[[1.0, 2]], [[3, 4]]])
    x = torch.tensor([[[5.0, 6]], [[7, 8]]])
    y = conv.causal_conv1d_update(x, states, W3)
    assert y.tolist() == [[[521, 652]], [[743, 874]]]
    assert states[:, 0].tolist() == [[5, 6], [7, 8]]


def test_pages_with_gaps_are_updated_in_place():
    pages = torch.zeros(3, 10)
    states = pages.as_strided((3, 1, 2), (10, 1, 1), 4)
    conv.causal_conv1d_update(torch.tensor([[3.0]]), states, W3, conv_state_indices=ints(2))
    assert pages.nonzero().tolist() == [[2, 5]] and pages[2, 5] == 3


def test_large_values_stay_finite():
    """In float16 this history would be infinite."""
    states = torch.full((1, 1, 2), 1e5, dtype=torch.bfloat16)
    weight = torch.full((1, 3), 0.25, dtype=torch.bfloat16)
    y = conv.causal_conv1d_update(torch.zeros(1, 1, dtype=torch.bfloat16), states, weight)
    assert y.item() == pytest.approx(5e4, rel=1e-2)


def test_work_is_done_in_the_dtype_of_the_states():
    x = torch.tensor([[1.0 + 2**-12]])
    states = torch.zeros(1, 1, 1, dtype=torch.float16)
    y = conv.causal_conv1d_update(x, states, torch.tensor([[0.0, 1.0]]))
    assert y.dtype == torch.float32 and y.item() == 1 and x.item() > 1
    assert (
        conv.causal_conv1d_fn(
            x, torch.tensor([[0.0, 1.0]]), None, states, ints(0, 1), activation=None
        ).dtype
        == torch.float32
    )


def slowly(x, weight, bias, history, activation):
    """One sequence, x [D, n] and history [D, W - 1], token by token."""
    full = torch.cat([history, x], 1)
    columns = [(full[:, t : t + weight.shape[1]] * weight).sum(1) + bias for t in range(x.shape[1])]
    y = torch.stack(columns, 1) if columns else x
    return torch.nn.functional.silu(y) if activation else y, full[:, x.shape[1] :]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("activation", [None, "silu", "swish", True])
def test_batches_are_as_token_by_token(width, activation):
    torch.manual_seed(width)
    lengths, channels = [0, 1, 9, 2, 0, 3], 5
    ends = torch.tensor([0, *lengths]).cumsum(0).int()
    x = torch.randn(sum(lengths), channels).T
    weight, bias = torch.randn(channels, width), torch.randn(channels)
    states = torch.randn(8, width + 1, channels).transpose(1, 2)
    lines, flags = torch.randperm(8)[:6].int(), torch.rand(6) < 0.5
    before = states.clone()
    y = conv.causal_conv1d_fn(x, weight, bias, states, ends, lines, flags, activation)
    assert y.stride(0) == 1
    for i, length in enumerate(lengths):
        some = slice(ends[i], ends[i + 1])
        history = before[lines[i], :, : width - 1] * flags[i]
        right, newest = slowly(x[:, some], weight, bias, history, activation)
        torch.testing.assert_close(y[:, some], right)
        if length:
            torch.testing.assert_close(states[lines[i], :, : width - 1], newest)
        assert states[lines[i], :, width - 1 :].equal(before[lines[i], :, width - 1 :])
    untouched = [line for line in range(8) if line not in lines.tolist()]
    assert states[untouched].equal(before[untouched])


@pytest.mark.parametrize(("length", "computed"), [(2, 15), (6, 15), (12, 15), (40, 15), (33, 0)])
def test_prefix_caching_keeps_the_state_after_each_full_block(length, computed):
    """Of blocks of 16 tokens; vLLM's kernel errs for the first three."""
    torch.manual_seed(0)
    width, block, channels = 4, 16, 3
    x, weight = torch.randn(channels, length), torch.randn(channels, width)
    states = torch.randn(9, width - 1, channels).transpose(1, 2)
    before = states.clone()
    first = computed // block
    last = (computed + length - 1) // block
    table = torch.tensor([[5, 2, 7, 1, 8]], dtype=torch.int32)
    source = max(computed - 1, 0) // block
    flag = computed > 0
    conv.causal_conv1d_fn(
        x,
        weight,
        None,
        states,
        ints(0, length),
        table,
        torch.tensor([flag]),
        None,
        block_idx_first_scheduled_token=ints(first),
        block_idx_last_scheduled_token=ints(last),
        initial_state_idx=ints(source),
        num_computed_tokens=ints(computed),
        block_size_to_align=block,
    )
    full = torch.cat([before[table[0, source]] * flag, x], 1)
    for place in range(first, last + 1):
        done = min((place + 1) * block, computed + length) - computed
        right = full[:, done : done + width - 1]
        torch.testing.assert_close(states[table[0, place]], right, msg=f"block {place}")
