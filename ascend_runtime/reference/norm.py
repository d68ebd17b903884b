"""Norms of the gated delta rule, defined in plain torch."""

from __future__ import annotations

import torch


def l2norm_fwd(
    x: torch.Tensor, eps: float = 1e-6, output_dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Scale the vectors of the last dimension to length 1.

    y = x / sqrt(sum(x^2) + eps), in float32; a vector of zeros stays one.

    Args:
        x: [..., D], any float.
        eps: is added to the sum of squares.
        output_dtype: of the result; that of `x` if not given.

    Returns: as `x`, contiguous.
    """
    wide = x.float()
    y = wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + eps)
    return y.to(output_dtype or x.dtype).contiguous()


def layer_norm_fwd(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    z: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    group_size: int | None = None,
    norm_before_gate: bool = True,
    is_rms_norm: bool = False,
    activation: str = "swish",
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Normalise groups of columns, with a gate before or after.

    Each group of a row is scaled to variance 1, or for the RMS norm mean square 1, then times
    weight, plus bias. The gate is act(z), a factor of the result, or of x if not
    `norm_before_gate`; act is z * sigmoid(z) for "swish" and "silu", sigmoid(z) for "sigmoid".

    Args:
        x: [M, N], any float, rows may be strided.
        weight: [N].
        bias: [N] or None.
        eps: is added to the variance.
        z: [M, N] or None.
        out: [M, N], written and returned if given.
        group_size: columns of a group, a divisor of N; N if not given.
        norm_before_gate, is_rms_norm, activation: see above.

    Returns:
        [M, N] of the dtype of `x` or `out`; float32 [N / group_size * M], the means of the first
        group, then of the second, or None for the RMS norm; and as many 1 / deviations.

    Raises RuntimeError for a group of more than 64 KiB, ValueError for an unknown activation.
    """
    rows, columns = x.shape
    size = check_layer_norm(x, weight, bias, z, out, group_size, activation)
    wide = x.float().view(rows, columns // size, size)
    gate = None if z is None else _activate(z.float().view(rows, columns // size, size), activation)
    if gate is not None and not norm_before_gate:
        wide = wide * gate
    mean = None if is_rms_norm else wide.mean(-1)
    if mean is not None:
        wide = wide - mean[..., None]
    scale = torch.rsqrt(wide.square().mean(-1) + eps)
    y = (wide * scale[..., None]).view(rows, columns) * weight.float()
    if bias is not None:
        y = y + bias.float()
    if gate is not None and norm_before_gate:
        y = y * gate.view(rows, columns)
    if out is None:
        out = torch.empty_like(x)
    out.copy_(y)
    return out, None if mean is None else mean.T.flatten(), scale.T.flatten()


def check_layer_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    z: torch.Tensor | None,
    out: torch.Tensor | None,
    group_size: int | None,
    activation: str,
) -> int:
    """Return the size of a group, or raise what `layer_norm_fwd` says."""
    columns = x.shape[1]
    size = group_size or columns
    assert columns % size == 0
    assert weight.shape == (columns,) and (bias is None or bias.shape == (columns,))
    assert z is None or z.shape == x.shape
    assert out is None or out.shape == x.shape
    if size * x.element_size() > 65536:
        raise RuntimeError(f"layer_norm_fwd: a group of {size} columns is more than 64 KiB")
    if activation not in ("swish", "silu", "sigmoid"):
        raise ValueError(f"layer_norm_fwd: there is no activation {activation!r}")
    return size


def _activate(z: torch.Tensor, activation: str) -> torch.Tensor:
    return torch.sigmoid(z) if activation == "sigmoid" else z * torch.sigmoid(z)
