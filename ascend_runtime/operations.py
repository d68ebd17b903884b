"""The operations that `dispatch` chooses implementations for, as data, in the order of preference.

An operation is named `<topic>.<function>`. Its implementations are functions of that name in
`ascend_runtime.vendor.<topic>` (an operator of Huawei's), `ascend_runtime.kernels.<topic>` (our
Triton kernels) and `ascend_runtime.reference.<topic>` (plain torch, always there).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ascend_runtime.device import SOCS

#: Chips that triton-ascend compiles for.
TRITON_SOCS: Final = ("A2", "A3")
#: Chips that the vendor's operators below are made for.
VENDOR_SOCS: Final = ("A2", "A3")
KINDS: Final = ("vendor", "kernel", "reference")


@dataclass(frozen=True)
class Implementation:
    """One way to do an operation."""

    kind: str
    """"vendor", "kernel" or "reference"."""
    function: str
    """`module:name`, to be imported when it is first wanted."""
    needs: tuple[str, ...] = ()
    """"triton", or the dotted names of operators that must be loaded."""
    socs: tuple[str, ...] = SOCS
    """The chips that it runs on."""
    fits: str | None = None
    """`module:name` of a test of the arguments; None: it takes all that the operation takes."""


@dataclass(frozen=True)
class Operation:
    """What a function or kernel of vLLM does, and the ways to do it, best first."""

    name: str
    implementations: tuple[Implementation, ...]


def _operation(
    name: str,
    *,
    vendor: tuple[str, ...] = (),
    kernel: bool = True,
    kernel_fits: bool = False,
) -> Operation:
    """Put an operation together.

    Args:
        vendor: the operators that the vendor's way needs; none: there is no such way.
        kernel: whether there is a Triton kernel.
        kernel_fits: whether the kernel's module has a test of the arguments, `<function>_fits`,
            as the vendor's always has.
    """
    topic, function = name.split(".")
    ways = []
    if vendor:
        target = f"ascend_runtime.vendor.{topic}:{function}"
        ways.append(Implementation("vendor", target, vendor, VENDOR_SOCS, f"{target}_fits"))
    if kernel:
        target = f"ascend_runtime.kernels.{topic}:{function}"
        fits = f"{target}_fits" if kernel_fits else None
        ways.append(Implementation("kernel", target, ("triton",), TRITON_SOCS, fits))
    ways.append(Implementation("reference", f"ascend_runtime.reference.{topic}:{function}"))
    return Operation(name, tuple(ways))


OPERATIONS: Final = {
    one.name: one
    for one in (
        _operation("conv.causal_conv1d_fn", kernel_fits=True),
        _operation("conv.causal_conv1d_update", kernel_fits=True),
        _operation("gdn.chunk_gated_delta_rule"),
        _operation("gdn.fused_recurrent_fwd", kernel_fits=True),
        _operation("gdn.fused_recurrent_kernel", kernel_fits=True),
        _operation("gdn.packed_decode", kernel_fits=True),
        _operation(
            "gdn.sigmoid_gating_update",
            vendor=("torch_npu.npu_recurrent_gated_delta_rule",),
            kernel_fits=True,
        ),
        _operation("gdn.gating"),
        _operation("gdn.olmo_gating"),
        _operation("gdn.split_qkvzba"),
        _operation("minimax.fused_qkv_norm_rope", kernel_fits=True),
        _operation("minimax.norm_qk", kernel_fits=True),
        _operation("norm.l2norm_fwd", kernel_fits=True),
        _operation("norm.layer_norm_fwd", kernel_fits=True),
        _operation("qwen.split_qkv_norm_rope", kernel_fits=True),
        _operation("rejection.greedy"),
        _operation("rejection.random"),
        _operation("rejection.expand", kernel=False),
        _operation("rejection.recover"),
        _operation(
            "sampling.apply_top_k_top_p",
            vendor=("torch.ops._C_ascend.npu_apply_top_k_top_p",),
            kernel=False,
        ),
        _operation("sampling.gumbel_sample", kernel_fits=True),
        _operation("sampling.apply_temperature", kernel_fits=True),
        _operation("sampling.token_logprobs"),
        _operation("sampling.ranks"),
        _operation("sampling.apply_penalties", kernel_fits=True),
        _operation("sampling.post_update", kernel_fits=True),
        _operation("slots.compute_slot_mappings"),
    )
}
