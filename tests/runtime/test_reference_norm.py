"""The norms, defined: numbers worked out by hand, and torch's own norms."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ascend_runtime.reference import norm


def test_l2norm():
    x = torch.tensor([[[3.0, 4.0], [0.0, 0.0], [-5.0, 12.0]]])
    got = norm.l2norm_fwd(x)
    torch.testing.assert_close(got, torch.tensor([[[0.6, 0.8], [0, 0], [-5 / 13, 12 / 13]]]))
    assert norm.l2norm_fwd(x, output_dtype=torch.float16).dtype == torch.float16
    assert norm.l2norm_fwd(x.half()).dtype == torch.float16
    got = norm.l2norm_fwd(torch.tensor([3.0, 4.0]), eps=75.0)
    torch.testing.assert_close(got, torch.tensor([0.3, 0.4]))


def test_layer_norm_is_torchs():
    x, weight, bias = torch.randn(5, 12), torch.randn(12), torch.randn(12)
    out, mean, scale = norm.layer_norm_fwd(x, weight, bias, 1e-5)
    torch.testing.assert_close(out, F.layer_norm(x, (12,), weight, bias, 1e-5))
    torch.testing.assert_close(mean, x.mean(1))
    torch.testing.assert_close(scale, (x.var(1, unbiased=False) + 1e-5).rsqrt())


def test_groups_are_group_major():
    x = torch.tensor([[1.0, 3, 10, 30], [2, 4, 20, 40]])
    out, mean, scale = norm.layer_norm_fwd(x, torch.ones(4), None, 0.0, group_size=2)
    assert mean.tolist() == [2, 3, 20, 30]
    torch.testing.assert_close(scale, torch.tensor([1, 1, 0.1, 0.1]))
    assert out.round().tolist() == [[-1, 1, -1, 1]] * 2


@pytest.mark.parametrize("activation", ["swish", "silu", "sigmoid"])
def test_gate(activation):
    """z = 0 gives a factor of 1/2, and swish 0."""
    x, z = torch.randn(3, 4), torch.zeros(3, 4)
    z[1] = 100
    gate = {"sigmoid": torch.tensor([0.5, 1, 0.5])}.get(activation, torch.tensor([0.0, 100, 0]))
    plain = F.rms_norm(x, (4,), eps=1e-6)
    for before in (True, False):
        out, mean, _ = norm.layer_norm_fwd(
            x,
            torch.ones(4),
            None,
            1e-6,
            z,
            norm_before_gate=before,
            is_rms_norm=True,
            activation=activation,
        )
        assert mean is None
        first = F.rms_norm(x * gate[:, None], (4,), eps=1e-6)
        torch.testing.assert_close(out, plain * gate[:, None] if before else first)


def test_strides_and_given_output():
    x = torch.randn(4, 30)[:, 5:17]
    out = torch.empty(4, 12, dtype=torch.float16)
    got = norm.layer_norm_fwd(x, torch.ones(12), None, 1e-6, out=out)[0]
    assert got is out
    torch.testing.assert_close(out, F.layer_norm(x, (12,)).half())


def test_bad_input_is_told():
    x = torch.ones(1, 40_000)
    with pytest.raises(RuntimeError, match="a group of 40000 columns is more than 64 KiB"):
        norm.layer_norm_fwd(x, torch.ones(40_000), None, 1e-6)
    with pytest.raises(ValueError, match="no activation 'relu'"):
        norm.layer_norm_fwd(x[:, :4], torch.ones(4), None, 1e-6, activation="relu")
    with pytest.raises(AssertionError):
        norm.layer_norm_fwd(x[:, :4], torch.ones(4), None, 1e-6, group_size=3)
