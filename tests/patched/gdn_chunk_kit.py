"""The chunked gated delta rule without Triton: torch in the place of its kernels, and its inputs.

Each stand-in takes what the host function launches its kernel with, and like the kernel knows only
from `cu_seqlens`, `chunk_indices` and `chunk_offsets` which rows are whose.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
import torch
from vllm.model_executor.layers.fla.ops import (
    chunk,
    chunk_delta_h,
    chunk_o,
    chunk_scaled_dot_kkt,
    cumsum,
    index,
    solve_tril,
    wy_fast,
)
from vllm.model_executor.layers.fla.ops.utils import input_guard

from ascend_runtime import dispatch

Tensor = torch.Tensor
RULE = "gdn.chunk_gated_delta_rule"
#: Each module that works chunks out unless they are given, and its kernel.
KERNELS = {
    cumsum: "chunk_local_cumsum_scalar_kernel",
    chunk_scaled_dot_kkt: "chunk_scaled_dot_kkt_fwd_kernel",
    solve_tril: "merge_16x16_to_64x64_inverse_kernel",
    wy_fast: "recompute_w_u_fwd_kernel",
    chunk_delta_h: "chunk_gated_delta_rule_fwd_kernel_h_blockdim64",
    chunk_o: "chunk_fwd_kernel_o",
}
TRITON = SimpleNamespace(
    cdiv=lambda a, b: (a + b - 1) // b, next_power_of_2=lambda n: 1 << (n - 1).bit_length()
)


def rows(grid_chunks: int, cu: Tensor, indices: Tensor, size: int) -> Iterator[tuple[int, slice]]:
    """The number and the rows of each chunk of a launch."""
    for number in range(grid_chunks):
        sequence, chunk_number = indices[number].tolist()
        begin, end = cu[sequence : sequence + 2].tolist()
        begin += chunk_number * size
        yield number, slice(begin, min(begin + size, end))


def heads(h: int, count: int, x: Tensor) -> Tensor:
    """What value head `h` of `count` sees of a tensor with fewer heads."""
    return x[:, h // (count // x.shape[1])]


def local_cumsum(grid, g, out, cu, indices, *, BT, **_) -> None:
    for _, at in rows(grid[0], cu, indices, BT):
        out[0, at] = g[0, at].to(out.dtype).cumsum(0)


def scaled_dot(grid, *, k, g, beta, A, cu_seqlens, chunk_indices, H, BT, **_) -> None:
    A.zero_()
    for _, at in rows(grid[0], cu_seqlens, chunk_indices, BT):
        for h in range(H):
            keys, decay = heads(h, H, k[0, at]), g[0, at, h]
            full = beta[0, at, h, None] * keys @ keys.T * (decay[:, None] - decay).exp()
            A[0, at, h, : len(keys)] = full.tril(-1).to(A.dtype)


def inverse(grid, *, A, Ai, cu_seqlens, chunk_indices, H, BT, **_) -> None:
    for _, at in rows(grid[0], cu_seqlens, chunk_indices, BT):
        for h in range(H):
            a = A[0, at, h]
            a = a[:, : len(a)]
            Ai[0, at, h, : len(a)] = (torch.eye(len(a)) + a).inverse().to(Ai.dtype)


def w_and_u(grid, *, k, v, beta, w, u, A, g, cu_seqlens, chunk_indices, H, BT, **_) -> None:
    for _, at in rows(grid[0], cu_seqlens, chunk_indices, BT):
        for h in range(H):
            a, b = A[0, at, h], beta[0, at, h, None]
            a = a[:, : len(a)]
            u[0, at, h] = a @ (v[0, at, h] * b)
            w[0, at, h] = a @ (heads(h, H, k[0, at]) * b * g[0, at, h, None].exp())


def states(grid, *, k, v, w, v_new, g, h, h0, ht, cu_seqlens, chunk_offsets, H, V, BT, **_) -> None:
    _, programs = grid({"BV": V})
    for program in range(programs):
        n, head = divmod(program, H)
        begin, end = cu_seqlens[n : n + 2].tolist()
        state = h0[n, head].double()
        for c in range(TRITON.cdiv(end - begin, BT)):
            at = slice(begin + c * BT, min(begin + (c + 1) * BT, end))
            h[0, int(chunk_offsets[n]) + c, head] = state
            new = v[0, at, head] - w[0, at, head] @ state.T
            v_new[0, at, head] = new
            decay = g[0, at, head, None]
            left = new * (decay[-1] - decay).exp()
            state = state * decay[-1].exp() + left.T @ heads(head, H, k[0, at])
        ht[n, head] = state


def outputs(grid, q, k, v, h, g, o, cu, indices, scale, *, H, V, BT, **_) -> None:
    _, chunks, programs = grid({"BV": V})
    for number, at in rows(chunks, cu, indices, BT):
        for head in range(programs):
            queries, keys = heads(head, H, q[0, at]), heads(head, H, k[0, at])
            decay = g[0, at, head, None]
            within = (queries @ keys.T * (decay - decay.T).exp()).tril() @ v[0, at, head]
            o[0, at, head] = scale * (queries @ h[0, number, head].T * decay.exp() + within)


STAND_INS = dict(
    zip(KERNELS, (local_cumsum, scaled_dot, inverse, w_and_u, states, outputs), strict=True)
)


@dataclass
class Seen:
    """The kernels that were launched, and how often chunks were worked out."""

    launches: list[str] = field(default_factory=list)
    indices: int = 0
    offsets: int = 0


class Launcher:
    """A kernel of which only the launch is real."""

    def __init__(self, name: str, run: Callable[..., None], seen: Seen) -> None:
        self.name, self.run, self.seen = name, run, seen

    def __getitem__(self, grid: object) -> Callable[..., None]:
        def launch(*arguments: object, **keywords: object) -> None:
            self.seen.launches.append(self.name)
            self.run(grid, *arguments, **keywords)

        return launch


@contextmanager
def watched(run: bool = True) -> Iterator[Seen]:
    """Run the rule with stand-ins for the kernels, or with `run` false for the host part only."""
    seen = Seen()

    def counted(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def count(*arguments: object) -> Tensor:
            setattr(seen, name, getattr(seen, name) + 1)
            return function(*arguments)

        return count

    rule = chunk.ChunkGatedDeltaRuleFunction
    # vLLM's own rule, whatever the device.
    with dispatch.override("upstream", RULE), pytest.MonkeyPatch.context() as patch:
        # Without the decorator that takes the platform's device, of which there is none here.
        patch.setattr(rule, "forward", staticmethod(input_guard(inspect.unwrap(rule.forward))))
        patch.setattr(torch.accelerator, "device_index", lambda _: nullcontext())
        patch.setattr(index, "triton", TRITON)
        patch.setattr(chunk, "l2norm_fwd", lambda x: x * (x * x).sum(-1, True).add(1e-6).rsqrt())
        for module, kernel in KERNELS.items():
            stand_in = STAND_INS[module] if run else lambda *_, **__: None
            patch.setattr(module, "triton", TRITON)
            patch.setattr(module, kernel, Launcher(kernel, stand_in, seen))
            indices = counted("indices", index.prepare_chunk_indices)
            patch.setattr(module, "prepare_chunk_indices", indices)
        offsets = counted("offsets", index.prepare_chunk_offsets)
        patch.setattr(chunk_delta_h, "prepare_chunk_offsets", offsets)
        yield seen


def batch(lengths: list[int], device: str | torch.device = "cpu") -> dict[str, object]:
    """Arguments of the rule: 2 key heads of 8, 4 value heads of 6, in float64."""
    chance = torch.Generator().manual_seed(sum(lengths))
    tokens = sum(lengths)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=chance, dtype=torch.float64)

    arguments = {
        "q": draw(1, tokens, 2, 8),
        "k": draw(1, tokens, 2, 8),
        "v": draw(1, tokens, 4, 6),
        "g": -draw(1, tokens, 4).abs() / 8,
        "beta": draw(1, tokens, 4).sigmoid(),
        "initial_state": draw(len(lengths), 4, 6, 8),
        "cu_seqlens": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
    }
    given = {name: tensor.to(device) for name, tensor in arguments.items()}
    return {**given, "output_final_state": True, "use_qk_l2norm_in_kernel": True}


def recurrence(lengths: list[int], arguments: dict) -> tuple[Tensor, Tensor]:
    """The rule by its definition, token by token."""
    unit = torch.nn.functional.normalize
    q, k = (unit(arguments[x][0], dim=-1).repeat_interleave(2, 1) for x in "qk")
    v, g, beta = (arguments[x][0] for x in ("v", "g", "beta"))
    out, finals, t = torch.zeros_like(v), [], 0
    for n, length in enumerate(lengths):
        state = arguments["initial_state"][n].clone()
        for _ in range(length):
            state = state * g[t].exp()[:, None, None]
            new = (v[t] - (state @ k[t, :, :, None])[..., 0]) * beta[t, :, None]
            state = state + new[:, :, None] * k[t, :, None]
            out[t] = (state @ q[t, :, :, None])[..., 0] * 8**-0.5
            t += 1
        finals.append(state)
    return out[None], torch.stack(finals)
