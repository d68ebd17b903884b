"""MiniMax-M2's norms, defined: numbers by hand, whole vectors, and an unfused computation."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ascend_runtime.reference.minimax import fused_qkv_norm_rope, norm_qk

T, Q, KV, HEAD, ROTARY = 5, 256, 128, 64, 32
Q_EPS, K_EPS = 1e-6, 1e-2
POSITIONS = torch.tensor([7, 0, 30, 7, 2])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def never(squares: torch.Tensor) -> torch.Tensor:
    raise AssertionError("one rank reduces nothing")


def test_by_hand():
    """Mean squares 12.5 and 8; the key's eps makes that 9."""
    q, k = torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 4.0]])
    got = norm_qk(q, k, torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]), 0.0, 1.0, 1, never)
    torch.testing.assert_close(got[0], torch.tensor([[3.0, 8.0]]) / 12.5**0.5)
    torch.testing.assert_close(got[1], torch.tensor([[0.0, 4.0]]))


def whole(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return F.rms_norm(x.double(), x.shape[-1:], weight.double(), eps)


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_together_norm_like_one(ranks: int):
    q, k = torch.randn(T, Q), torch.randn(T, KV) * 0.1
    weights = torch.randn(Q), torch.randn(KV)
    parts = list(zip(*(x.chunk(ranks, -1) for x in (q, k, *weights)), strict=True))
    seen: list[torch.Tensor] = []

    def first(squares: torch.Tensor) -> torch.Tensor:
        seen.append(squares.clone())
        return squares

    for part in parts:
        norm_qk(*part, Q_EPS, K_EPS, ranks, first)
    assert [(one.shape, one.dtype) for one in seen] == [((T, 2), torch.float32)] * ranks
    got = [norm_qk(*part, Q_EPS, K_EPS, ranks, lambda x: sum(seen)) for part in parts]
    for found, x, weight, eps in zip(
        zip(*got, strict=True), (q, k), weights, (Q_EPS, K_EPS), strict=True
    ):
        together = torch.cat(found, -1)
        torch.testing.assert_close(together.double(), whole(x, weight, eps), atol=1e-5, rtol=0)


def test_norms_take_strides_and_no_tokens():
    qkv = torch.randn(T, Q + 2 * KV)
    q, k = qkv[:, :Q], qkv[:, Q : Q + KV]
    ones = torch.ones(Q), torch.ones(KV)
    got = norm_qk(q, k, *ones, Q_EPS, K_EPS, 1, never)
    assert all(one.is_contiguous() for one in got)
    torch.testing.assert_close(got, norm_qk(q.clone(), k.clone(), *ones, Q_EPS, K_EPS, 1, never))
    got = norm_qk(q[:0], k[:0], *ones, Q_EPS, K_EPS, 2, lambda x: x)
    assert [one.shape for one in got] == [(0, Q), (0, KV)]


def test_one_rounding_in_16_bit():
    """As float64, rounded; the norm rounded before the weight would differ in a third of them."""
    q, k = torch.randn(200, Q).bfloat16(), torch.randn(200, KV).bfloat16()
    weights = torch.rand(Q).bfloat16() + 0.5, torch.rand(KV).bfloat16() + 0.5
    got = norm_qk(q, k, *weights, Q_EPS, K_EPS, 1, never)
    for found, x, weight, eps in zip(got, (q, k), weights, (Q_EPS, K_EPS), strict=True):
        exact = whole(x, weight, eps)
        assert found.dtype == torch.bfloat16
        assert ((found.double() - exact).abs() <= 2**-8 * exact.abs()).all()
        assert (found != exact.bfloat16()).float().mean() < 1e-3
        twice = whole(x, torch.ones_like(weight), eps).bfloat16() * weight
        assert (twice != exact.bfloat16()).float().mean() > 0.1


@pytest.mark.parametrize("size", [1e-3, 1e-5, 0.0])
def test_mean_squares_near_and_below_eps(size: float):
    """Nothing is subtracted, so nothing is lost: 1e-10 is five digits below eps."""
    q, k = torch.randn(T, Q) * size, torch.randn(T, KV) * size
    ones = torch.ones(Q), torch.ones(KV)
    got = norm_qk(q, k, *ones, Q_EPS, Q_EPS, 1, never)
    for found, x, weight in zip(got, (q, k), ones, strict=True):
        torch.testing.assert_close(found.double(), whole(x, weight, Q_EPS), rtol=1e-5, atol=1e-30)


def cache(rows: int = 40, rotary: int = ROTARY) -> torch.Tensor:
    angles = torch.arange(rows)[:, None] * 10000.0 ** -(torch.arange(0, rotary, 2) / rotary)
    return torch.cat([angles.cos(), angles.sin()], -1)


def unfused(x, weight, eps, positions, head: int = HEAD, rotary: int = ROTARY) -> torch.Tensor:
    """Each pair as a complex number, turned by the angle of its position, in float64."""
    heads = whole(x, weight, eps).reshape(len(x), -1, head).clone()
    half = rotary // 2
    angle = positions[:, None].double() * 10000.0 ** -(torch.arange(0, rotary, 2) / rotary).double()
    turn = torch.polar(torch.ones_like(angle), angle)[:, None]
    pair = torch.complex(heads[..., :half], heads[..., half:rotary]) * turn
    heads[..., :half], heads[..., half:rotary] = pair.real, pair.imag
    return heads.flatten(1)


def call(qkv, weights, positions, table=None, world=1, reduce=never):
    table = cache() if table is None else table
    sizes = (Q, KV, HEAD, ROTARY, Q_EPS, K_EPS, world, reduce)
    return fused_qkv_norm_rope(qkv, *weights, positions, table, *sizes)


WEIGHTS = torch.linspace(0.5, 1.5, Q), torch.linspace(2, 1, KV)


@pytest.mark.parametrize("positions", [POSITIONS, torch.arange(T), POSITIONS.int()], ids=str)
def test_fused_is_the_unfused_computation(positions: torch.Tensor):
    qkv = torch.randn(T, Q + 2 * KV) * 0.3
    q, k, v = call(qkv, WEIGHTS, positions)
    given = qkv[:, :Q], qkv[:, Q : Q + KV]
    for found, x, weight, eps in zip((q, k), given, WEIGHTS, (Q_EPS, K_EPS), strict=True):
        assert found.is_contiguous()
        assert (found - unfused(x, weight, eps, positions)).abs().max() < 1e-5
    assert v.data_ptr() == qkv[:, Q + KV :].data_ptr() and torch.equal(v, qkv[:, Q + KV :])


def test_rotation_of_a_whole_head():
    qkv = torch.randn(3, 24)
    ones = torch.ones(8), torch.ones(8)
    sizes = (8, 8, 4, 4, 1e-6, 1e-6, 1, never)
    q, _, _ = fused_qkv_norm_rope(qkv, *ones, torch.tensor([1, 2, 3]), cache(4, 4), *sizes)
    expected = unfused(qkv[:, :8], ones[0], 1e-6, torch.tensor([1, 2, 3]), 4, 4)
    torch.testing.assert_close(q.double(), expected, atol=1e-6, rtol=1e-5)


def test_fused_ranks_and_no_tokens():
    """Two ranks that have the same norm like one of them."""
    qkv = torch.randn(T, Q + 2 * KV)
    alone = call(qkv, WEIGHTS, POSITIONS)
    calls = []
    got = call(qkv, WEIGHTS, POSITIONS, world=2, reduce=lambda x: calls.append(x.shape) or x * 2)
    torch.testing.assert_close(got, alone)
    assert calls == [(T, 2)]
    shapes = [one.shape for one in call(qkv[:0], WEIGHTS, POSITIONS[:0])]
    assert shapes == [(0, Q), (0, KV), (0, KV)]


def test_fused_rounds_once_in_16_bit():
    """Norm, then rotation, each rounded, would differ in a third of the elements."""
    qkv = torch.randn(T, Q + 2 * KV).bfloat16()
    weights = [weight.bfloat16() for weight in WEIGHTS]
    q, k, v = call(qkv, weights, POSITIONS)
    assert {q.dtype, k.dtype, v.dtype} == {torch.bfloat16}
    given = qkv[:, :Q], qkv[:, Q : Q + KV]
    for found, x, weight, eps in zip((q, k), given, weights, (Q_EPS, K_EPS), strict=True):
        exact = unfused(x, weight, eps, POSITIONS).bfloat16()
        assert (found != exact).float().mean() < 2e-3


@pytest.mark.parametrize("positions", [torch.arange(T + 1), torch.zeros(3, T, dtype=torch.int64)])
def test_positions_must_be_one_a_token(positions: torch.Tensor):
    with pytest.raises(ValueError, match=r"positions \(.*\) for 5 rows"):
        call(torch.randn(T, Q + 2 * KV), WEIGHTS, positions)
