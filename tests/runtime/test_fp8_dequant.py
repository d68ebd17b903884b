"""fp8 blocks become 16-bit weights, in any order, and nothing is lost in silence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from ascend_runtime.fp8_dequant import dequantize, dequantize_block, maybe_dequantize

GENERATOR = torch.Generator().manual_seed(0)
WEIGHT = torch.randn(130, 200, generator=GENERATOR).to(torch.float8_e4m3fn)
SCALE = torch.rand(2, 2, generator=GENERATOR) + 0.5
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def exact(weight: torch.Tensor, scale: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Element by element, in float64."""
    result = weight.double().clone()
    for i in range(weight.shape[0]):
        for j in range(0, weight.shape[1], columns):
            result[i, j : j + columns] *= scale.double()[i // rows, j // columns]
    return result


def config(**fields: object) -> SimpleNamespace:
    return SimpleNamespace(quantization_config=fields)


def test_equals_float64_within_one_rounding() -> None:
    result = dequantize_block(WEIGHT, SCALE)
    expected = exact(WEIGHT, SCALE, 128, 128)
    assert result.dtype is torch.bfloat16 and result.shape == (130, 200)
    assert torch.equal(result, expected.float().bfloat16())
    error = (result.double() - expected).abs()
    assert bool((error <= expected.abs() * 2**-8).all())


def test_scales_are_not_rounded_before_the_product() -> None:
    weight = torch.randn(512, 512, generator=GENERATOR).to(torch.float8_e4m3fn)
    scale = torch.rand(16, 16, generator=GENERATOR) + 0.5
    expected = exact(weight, scale, 32, 32)
    once, twice = (
        dequantize_block(weight, s, (32, 32)).double() for s in (scale, scale.bfloat16())
    )
    errors = [float((r - expected).norm() / expected.norm()) for r in (once, twice)]
    assert errors[0] < 1.75e-3 < 1.9e-3 < errors[1]


@pytest.mark.parametrize("block", [(64, 32), (130, 200), (1, 7)])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_other_blocks_and_formats(block: tuple[int, int], dtype: torch.dtype) -> None:
    weight = WEIGHT.float().to(dtype)
    scale = torch.rand(-(-130 // block[0]), -(-200 // block[1]), generator=GENERATOR)
    result = dequantize_block(weight, scale, block, torch.float32)
    torch.testing.assert_close(result.double(), exact(weight, scale, *block))


@pytest.mark.parametrize(
    ("weight", "scale"),
    [(WEIGHT, SCALE[:1]), (WEIGHT, SCALE[0]), (WEIGHT[0], SCALE[0]), (WEIGHT[None], SCALE)],
)
def test_shapes_that_do_not_fit_are_refused(weight, scale) -> None:
    with pytest.raises(ValueError, match="does not fit to scales"):
        dequantize_block(weight, scale)


PAIR = [("a.weight", WEIGHT), ("a.weight_scale_inv", SCALE)]
OTHERS = [("b.weight", torch.ones(3)), ("b.bias", torch.ones(2)), ("lm_head.weight", SCALE)]


@pytest.mark.parametrize("pair", [PAIR, PAIR[::-1]], ids=["weight first", "scale first"])
def test_either_order_and_what_stands_between(pair) -> None:
    stream = [pair[0], *OTHERS, pair[1]]
    result = list(dequantize(iter(stream), (128, 128), torch.bfloat16))
    assert [name for name, _ in result] == ["b.weight", "b.bias", "lm_head.weight", "a.weight"]
    for (_, given), (_, got) in zip(OTHERS, result, strict=False):
        assert got is given
    assert torch.equal(result[-1][1], dequantize_block(WEIGHT, SCALE))


def test_a_pair_is_given_as_soon_as_it_is_whole() -> None:
    def stream():
        yield from PAIR
        raise AssertionError("asked for more than it needed")

    assert next(dequantize(stream(), (128, 128), torch.bfloat16))[0] == "a.weight"


@pytest.mark.parametrize(
    ("stream", "names"),
    [
        (PAIR[:1], "1 .*: a.weight$"),
        (PAIR[1:], "1 .*: a.weight_scale_inv$"),
        ([("a.weight", torch.ones(130, 200)), PAIR[1]], "1 .*: a.weight_scale_inv$"),
        ([(f"{n}.weight", WEIGHT) for n in range(7)], "7 .*: 0.weight, .*, 4.weight$"),
    ],
)
def test_what_is_left_without_the_other_is_named(stream, names) -> None:
    with pytest.raises(ValueError, match=names):
        list(dequantize(iter(stream), (128, 128), torch.bfloat16))


@pytest.mark.parametrize(
    ("hf_config", "quant_config"),
    [
        (config(**FP8), object()),  # a platform with fp8
        (config(quant_method="awq"), None),
        (config(), None),
        (SimpleNamespace(quantization_config=None), None),
        (SimpleNamespace(), None),
    ],
)
def test_off_is_the_iterator_itself(hf_config, quant_config) -> None:
    weights = iter(PAIR)
    assert maybe_dequantize(hf_config, quant_config, weights) is weights


@pytest.mark.parametrize("block", [[130, 200], (130, 200)], ids=["list", "tuple"])
def test_block_size_of_the_checkpoint(block) -> None:
    hf_config = config(quant_method="fp8", weight_block_size=block)
    stream = [("a.weight", WEIGHT), ("a.weight_scale_inv", torch.full((1, 1), 2.0))]
    ((_, result),) = maybe_dequantize(hf_config, None, iter(stream))
    assert torch.equal(result, (WEIGHT.float() * 2).bfloat16())


def test_block_size_is_128_if_none_is_told() -> None:
    ((_, result),) = maybe_dequantize(config(quant_method="fp8"), None, iter(PAIR))
    assert torch.equal(result, dequantize_block(WEIGHT, SCALE, (128, 128)))
