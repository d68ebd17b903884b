"""Qwen3-Next's q, k, v and gate, defined: hand numbers, other arithmetic, and its roundings."""

from __future__ import annotations

import pytest
import torch

from ascend_runtime import qwen
from ascend_runtime.reference.qwen import split_qkv_norm_rope

EPS = 1e-6


def table(rotary: int, positions: int = 50) -> torch.Tensor:
    angles = torch.arange(positions)[:, None] * 10.0 ** -torch.arange(rotary // 2)
    return torch.cat((angles.cos(), angles.sin()), dim=1)


def case(
    tokens: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    rotary: int,
    gate: bool,
    dtype: torch.dtype = torch.float32,
) -> dict:
    """Arguments with positions of one axis, and a projection that is a part of something."""
    generator = torch.Generator().manual_seed(tokens)
    width = (heads * (1 + gate) + 2 * kv_heads) * head_dim
    return {
        "qkv": torch.randn(tokens, width + 3, generator=generator)[:, 3:].to(dtype),
        "q_weight": torch.randn(head_dim, generator=generator).to(dtype),
        "k_weight": torch.randn(head_dim, generator=generator).to(dtype),
        "cos_sin_cache": table(rotary).to(dtype),
        "positions": torch.randint(0, 50, (tokens,), generator=generator),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "eps": EPS,
        "gate": gate,
    }


def in_complex_numbers(call: dict, axes: str) -> list[torch.Tensor | None]:
    """Head by head and in float64; `axes` says of which position each angle is."""
    qkv, size = call["qkv"].double(), call["head_dim"]
    half = call["cos_sin_cache"].size(1) // 2
    cos, sin = call["cos_sin_cache"].double().split(half, 1)
    turn = torch.complex(cos, sin)
    positions = call["positions"].expand(3, -1)
    turns = [turn[positions["THW".index(axis)], i] for i, axis in enumerate(axes)]
    turns = torch.stack(turns, dim=1)

    def head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        x = x / (x.square().sum(1, keepdim=True) / size + EPS).sqrt() * (weight.double() + 1)
        turned = torch.complex(x[:, :half], x[:, half : 2 * half]) * turns
        return torch.cat((turned.real, turned.imag, x[:, 2 * half :]), dim=1)

    parts, q, gates = list(qkv.split(size, dim=1)), [], []
    for _ in range(call["num_heads"]):
        q.append(head(parts.pop(0), call["q_weight"]))
        if call["gate"]:
            gates.append(parts.pop(0))
    n = call["num_kv_heads"]
    k = [head(x, call["k_weight"]) for x in parts[:n]]
    return [torch.cat(x, dim=1) if x else None for x in (q, k, parts[n:], gates)]


def check(call: dict, axes: str, **tolerance: float) -> None:
    found, size = split_qkv_norm_rope(**call), call["head_dim"]
    widths = [call["num_heads"], call["num_kv_heads"], call["num_kv_heads"], call["num_heads"]]
    for one, wanted, count in zip(found, in_complex_numbers(call, axes), widths, strict=True):
        if wanted is None:
            assert one is None
            continue
        assert one.is_contiguous() and one.dtype == call["qkv"].dtype
        assert one.shape == (len(call["qkv"]), count * size)
        torch.testing.assert_close(one, wanted.to(one.dtype), **tolerance)


def test_hand_numbers():
    """Mean squares are 12.5 and 1/2; a quarter of a turn, and no turn."""
    qkv = torch.tensor([[3.0, 4, 0, 5, 7, 8, 9, 10, 1, 0, 0, 1, 20, 21, 22, 23]])
    weight = torch.tensor([0.0, 1, 0, -1])
    cache = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    call = (qkv, weight, -weight, cache, torch.tensor([1]), 1, 1, 4, 0.0, True)
    q, k, v, gate = split_qkv_norm_rope(*call)
    root = 12.5**-0.5
    torch.testing.assert_close(q, torch.tensor([[-8 * root, 3 * root, 0, 0]]))
    torch.testing.assert_close(k, torch.tensor([[0, 2**0.5, 0, 2 * 2**0.5]]))
    assert v.tolist() == [[20, 21, 22, 23]] and gate.tolist() == [[7, 8, 9, 10]]
    q, *_ = split_qkv_norm_rope(*call[:4], torch.tensor([0]), *call[5:])
    torch.testing.assert_close(q, torch.tensor([[3 * root, 8 * root, 0, 0]]))


SIZES = [
    (5, 4, 2, 16, 4),
    (3, 3, 3, 10, 10),
    (7, 6, 1, 12, 6),
    (1, 1, 1, 2, 2),
    (0, 2, 1, 8, 4),
]


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_is_the_same_in_complex_numbers(sizes, gate):
    call = case(*sizes, gate)
    check(call, "T" * (sizes[-1] // 2))
    check(call | {"positions": call["positions"].int()}, "T" * (sizes[-1] // 2))


AXES = [
    ((3, 3, 2), False, "TTTHHHWW"),
    ((3, 3, 2), True, "THWTHWTH"),
    ((4, 2, 2), True, "THWTHWTT"),
    ((2, 1, 5), False, "TTHWWWWW"),
    ((6, 2, 0), True, "THTTHTTT"),
    ((2, 2, 4), True, "THWTHWTT"),
]


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize(("section", "interleaved", "axes"), AXES, ids=str)
def test_axes_of_angles(section, interleaved, axes, gate):
    call = case(6, 2, 1, 20, 16, gate)
    call |= {"mrope_section": section, "mrope_interleaved": interleaved}
    check(call, "T" * 8)  # of text, the positions have one axis
    one = call["positions"]
    check(call | {"positions": torch.stack((one, one, one))}, "T" * 8)
    table_of_all = torch.randint(0, 50, (3, 40))  # vLLM's is as wide as the longest batch
    check(call | {"positions": table_of_all[:, 5:11]}, axes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_roundings(dtype):
    """After the norm, of cos and sin, of each product, of the sum; float32 tables are rounded."""
    call = case(40, 2, 1, 16, 8, True, dtype) | {"cos_sin_cache": table(8)}
    call |= {"q_weight": call["q_weight"].float()}

    def r(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype).float()

    x = call["qkv"][:, :64].float().view(40, 2, 32)[..., :16]
    x = x * (x.pow(2).mean(-1, keepdim=True) + EPS).rsqrt() * (1 + call["q_weight"])
    a, b = r(x)[..., :4], r(x)[..., 4:8]
    cos, sin = r(table(8)[call["positions"]])[:, None].chunk(2, dim=-1)
    wanted = (r(r(a * cos) - r(b * sin)), r(r(b * cos) + r(a * sin)), r(x)[..., 8:])
    once = (r(a * cos - b * sin), r(b * cos + a * sin), r(x)[..., 8:])
    q = split_qkv_norm_rope(**call)[0].float()
    assert torch.equal(q, torch.cat(wanted, -1).flatten(1))
    assert not torch.equal(q, torch.cat(once, -1).flatten(1))
    check(call, "TTTT", rtol=0.05, atol=0.05)


def test_results_are_no_views():
    call = case(3, 2, 1, 8, 4, True)
    before = call["qkv"].clone()
    for one in split_qkv_norm_rope(**call):
        one.fill_(7)
    assert torch.equal(call["qkv"], before)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"num_heads": 3}, r"qkv is \(4, 48\), not \[T, 64\]"),
        ({"gate": False}, r"qkv is \(4, 48\), not \[T, 32\]"),
        ({"qkv": torch.ones(48)}, r"qkv is \(48,\)"),
        ({"cos_sin_cache": torch.ones(9, 3)}, "3 of 8 numbers cannot be rotated"),
        ({"cos_sin_cache": torch.ones(9, 10)}, "10 of 8 numbers cannot be rotated"),
        ({"positions": torch.zeros(5, dtype=torch.long)}, r"\(5,\) are no positions of 4 tokens"),
        ({"positions": torch.zeros(2, 4, dtype=torch.long)}, r"\(2, 4\) are no positions"),
        ({"positions": torch.zeros(3, 4, dtype=torch.long)}, r"\(\) are no sections of 2"),
        (
            {"positions": torch.zeros(3, 4, dtype=torch.long), "mrope_section": (1, 1, 1)},
            r"\(1, 1, 1\) are no sections of 2",
        ),
    ],
)
def test_shapes_that_do_not_go_together(change, why):
    with pytest.raises(ValueError, match=why):
        split_qkv_norm_rope(**case(4, 2, 1, 8, 4, True) | change)


@pytest.mark.parametrize("gate", [True, False])
@pytest.mark.parametrize("sections", [[], [2, 1, 1]])
def test_operator_is_well_formed(gate, sections):
    call = case(5, 4, 2, 16, 8, gate)
    if sections:
        call["positions"] = call["positions"].expand(3, 5)
    given = (*call.values(), sections, bool(sections))
    torch.library.opcheck(qwen._split_op, given)
    made = qwen._split_op(*given)
    assert len(made) == 3 + gate
    assert all(map(torch.equal, made, split_qkv_norm_rope(*given)))
