"""What a device must do that whole models run on; each function is a test, run on device "npu".

`python npu_cases.py` runs all of them in one process and prints {name: "" or what went wrong} as
JSON. torch keeps a renamed backend until the process ends, so pytest's own process runs none.
"""

from __future__ import annotations

import copy
import inspect
import io
import json
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests/platform")]

import npu_device  # noqa: E402

npu_device.load(devices=2, memory=1 << 30)
NPU = torch.device("npu", 0)


def on_npu(value: object) -> object:
    """Copy tensors, also those in lists, to the device."""
    if isinstance(value, torch.Tensor):
        return value.to(NPU)
    return [on_npu(item) for item in value] if isinstance(value, list) else value


def flat(value: object) -> list[object]:
    return [x for item in value for x in flat(item)] if isinstance(value, list | tuple) else [value]


def same(function: Callable[..., object], *arguments: object) -> None:
    """Run a function on both devices; results and arguments must be equal afterwards."""
    theirs = copy.deepcopy(list(arguments))
    ours = on_npu(theirs)
    torch.manual_seed(1)
    expected = function(*theirs)
    torch.manual_seed(1)
    got = function(*ours)
    for want, have in zip(flat([expected, theirs]), flat([got, ours]), strict=True):
        if isinstance(want, torch.Tensor):
            assert have.device == NPU, have.device
            assert (want.dtype, want.shape, want.stride(), want.storage_offset()) == (
                have.dtype,
                have.shape,
                have.stride(),
                have.storage_offset(),
            )
            torch.testing.assert_close(have.cpu(), want, rtol=0, atol=0, equal_nan=True)
        else:
            assert want == have


def raises(kind: type[Exception], text: str, function: Callable[[], object]) -> None:
    try:
        function()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__}")


X = torch.arange(12.0).view(3, 4)


def creation() -> None:
    for make in (torch.zeros, torch.ones, torch.empty):
        tensor = make(2, 3, device="npu", dtype=torch.bfloat16)
        assert (tensor.device, tensor.shape, tensor.dtype) == (NPU, (2, 3), torch.bfloat16)
    assert torch.tensor([1, 2], device="npu").tolist() == [1, 2]
    assert torch.full((2,), 7, device="npu").tolist() == [7, 7]
    assert torch.arange(1, 9, 3, device=NPU).tolist() == [1, 4, 7]
    assert torch.eye(2, device=NPU).tolist() == [[1, 0], [0, 1]]
    assert torch.linspace(0, 1, 3, device=NPU).tolist() == [0, 0.5, 1]
    assert torch.tril_indices(2, 2, device=NPU).tolist() == [[0, 1, 1], [0, 0, 1]]
    assert torch.zeros_like(X.to(NPU)).device == NPU
    assert X.to(NPU).new_zeros(2).device == NPU
    assert torch.empty_strided((2, 3), (1, 2), device=NPU).stride() == (1, 2)
    assert torch.empty(0, device=NPU).data_ptr() == 0
    with torch.device("npu"):
        assert torch.zeros(1).device == NPU
    images = torch.empty(1, 2, 3, 3, device=NPU, memory_format=torch.channels_last)
    assert images.stride() == (18, 1, 6, 2)


def moves_between_devices() -> None:
    ours = X.to("npu")
    assert (ours.is_npu, ours.cpu().is_npu, X.npu().device) == (True, False, NPU)
    assert torch.equal(ours.cpu(), X) and ours.to("cpu").device.type == "cpu"
    assert ours.to("npu") is ours
    assert X.t().to(NPU).stride() == X.t().stride()
    assert X.to(NPU, torch.int32).dtype == torch.int32
    assert X.to(NPU, non_blocking=True).tolist() == X.tolist()
    raises(TypeError, "can't convert npu", ours.numpy)
    assert ours.cpu().numpy().sum() == 66


def copies_between_types() -> None:
    for source in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float16):
        for target in (torch.float32, torch.bfloat16, torch.int32, torch.uint8):
            values = torch.tensor([0, 1, 2, 3]).to(source)
            expected = torch.zeros(4, dtype=target).copy_(values)
            ours = torch.zeros(4, dtype=target, device=NPU)
            for from_device in ("cpu", "npu"):
                assert torch.equal(ours.zero_().copy_(values.to(from_device)).cpu(), expected)
            back = torch.zeros(4, dtype=target).copy_(values.to(NPU))
            assert torch.equal(back, expected)
    same(lambda x, y: x.copy_(y), torch.zeros(3, 4), torch.arange(4))  # broadcasts
    same(lambda x, y: x[:, ::2].copy_(y.t()[::2].T[:3]), X, torch.arange(16.0).view(4, 4))
    same(lambda x: x.copy_(x.clone()), X)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.zeros(1, dtype=torch.complex64, device=NPU).copy_(conjugate).tolist() == [1 - 2j]
    assert conjugate.to(NPU).tolist() == [1 - 2j] and conjugate.to(NPU).imag.tolist() == [-2]


def arithmetic() -> None:
    same(lambda x, y: [x + y, x @ y.T, x * 2 + 1, 1 / (x + 1), x > y, -x, x.sum(), x.mean(0)], X, X)
    same(lambda x: [x.softmax(-1), x.argmax(-1), x.max(-1), torch.var_mean(x, 0), x.cumsum(1)], X)
    same(lambda x: [x.to(torch.bfloat16) * x, x.to(torch.int32) + 1.5, x.half() @ x.half().T], X)
    same(lambda x, y: [torch.where(x > 3, x, y), torch.where(x > 3, x, 0.0)], X, -X)
    same(lambda x: [torch.cat([x, x[:1]]), torch.stack([x, x]), x.repeat(2, 1), F.silu(x)], X)
    same(lambda x: [x.topk(2), x.sort(descending=True), x.unique(), x.nonzero(), x.any()], X)
    same(lambda x: torch.einsum("ij,kj->ik", x, x), X)
    same(
        lambda x: [torch.bincount(x), torch.searchsorted(x, x), x.repeat_interleave(x)], X[0].int()
    )
    same(lambda x: [x.isnan(), x.clamp(1, 5), x.masked_fill(x > 5, float("-inf"))], X)
    same(lambda x: torch._foreach_add([x, x * 2], 1), X)


def views_share_memory() -> None:
    ours = X.to(NPU)
    row = ours[1].view(2, 2)[1:]  # a view of a view of a view
    row.fill_(-1)
    assert ours[1].tolist() == [4, 5, -1, -1]
    assert row.data_ptr() == ours.data_ptr() + 6 * 4
    assert row.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()
    parts = ours.split([1, 2]) + ours.unbind() + ours.chunk(2, 1) + (ours.t(), ours.unfold(1, 2, 1))
    storage = ours.untyped_storage()
    assert all(part.untyped_storage()._cdata == storage._cdata for part in parts)
    for index, part in enumerate(parts):
        part.fill_(index)
        assert (part == index).all()
    same(lambda x: [x.t().contiguous(), x.expand(2, 3, 4), x.movedim(0, 1), x[..., None]], X)
    same(lambda x: [x.as_strided((2, 2), (1, 4), 1), x.diagonal(), x.flatten(), x.squeeze()], X)
    same(lambda x: [x.view(torch.int32), x.view(torch.int16)[:, 1:]], X)
    same(
        lambda x: [torch.view_as_complex(x), torch.view_as_real(torch.view_as_complex(x))],
        X.view(2, 3, 2),
    )
    empty = ours[:0]
    assert empty.shape == (0, 4) and empty._base is ours and empty._is_view()
    assert empty.untyped_storage()._cdata == storage._cdata
    raises(RuntimeError, "view size is not compatible", lambda: ours.t().view(12))


def indexing() -> None:
    rows = torch.tensor([2, 0])
    same(
        lambda x, i: [x[i], x[:, i], x[i, i], x[x > 5], x[i][:, None], x.index_select(0, i)],
        X,
        rows,
    )
    same(lambda x, i: x.__setitem__(i, x[i] * 10), X, rows)
    same(lambda x, i: x.__setitem__((i, slice(1, 3)), 7), X, rows)
    same(lambda x: x.__setitem__(x > 5, 0), X)
    same(lambda x, i: x.index_put_((i, i), x[i, i] + 1, accumulate=True), X, rows)
    same(lambda x, i: x.index_copy_(0, i, x[:2] * 2), X, rows)
    same(
        lambda x, i: [x.gather(1, i), x.scatter_(1, i, 5.0), x.scatter_add_(1, i, x * 2)],
        X,
        torch.zeros(3, 4).long(),
    )
    same(lambda x: x.masked_scatter_(x > 5, x.flatten() * 2), X)
    assert torch.equal(X.to(NPU)[rows].cpu(), X[rows])  # indices may be on the CPU
    flat_cache = torch.zeros(2, 4, 3, device=NPU)
    flat_cache.view(-1, 3)[torch.tensor([5, 1], device=NPU)] = 1.0
    assert flat_cache[1, 1].tolist() == [1, 1, 1] and flat_cache.sum() == 6


def changes_in_place() -> None:
    same(lambda x: x.add_(1).mul_(x).t_(), X)
    same(lambda x: x.t().add_(1), X)
    same(lambda x: x[1:, ::2].zero_(), X)
    same(lambda x: [x.unsqueeze_(0), x.squeeze_(), x.transpose_(0, 1), x.fill_diagonal_(9)], X)
    same(lambda x: x.clamp_(2, 4).exp_().floor_divide_(2), X)
    same(lambda x: x.normal_().cumsum_(1), X)
    same(lambda xs: torch._foreach_mul_(xs, 2), [X, X[0].clone()])
    ours = X.to(NPU)
    before, pointer = ours._version, ours.data_ptr()
    assert ours.add_(1) is ours and ours.data_ptr() == pointer and ours._version == before + 1
    raises(RuntimeError, "single memory location", lambda: X.to(NPU)[:1].expand(3, 4).add_(1))
    raises(RuntimeError, "single memory location", lambda: torch.add(ours[:2], 1, out=ours[1:]))


def out_arguments() -> None:
    same(lambda x, out: torch.mul(x, 2, out=out), X, torch.zeros(3, 4))
    same(lambda x, out: torch.mul(x, 2, out=out.t()), X, torch.zeros(4, 3))
    same(lambda x, out: torch.mul(x, 2, out=out[:, ::2]), X, torch.zeros(3, 8))
    same(lambda x, out: torch.add(x, 1, out=out), X, torch.empty(0))  # grows
    same(lambda x, out: torch.mm(x, x.T, out=out), X, torch.empty(0))
    same(lambda x, out: torch.cat([x, x], out=out), X, torch.empty(0))
    same(lambda x, out: torch.topk(x, 2, out=out), X, [torch.empty(0), torch.empty(0).long()])
    same(
        lambda x, out: torch.sort(x, out=tuple(out)), X, [torch.empty(3, 4), torch.empty(0).long()]
    )
    same(lambda x, out: torch.sum(x, 0, out=out[2:6]), X, torch.zeros(9))
    same(lambda x, out: torch.nonzero(x, out=out), X, torch.empty(0).long())
    same(
        lambda x, out: torch.index_select(x, 0, torch.tensor([2], device=x.device), out=out),
        X,
        torch.empty(1, 4),
    )
    same(lambda x, out: torch.argmax(x, 1, out=out), X, torch.empty(3).long())
    out = torch.empty(0, device=NPU)
    assert torch.add(X.to(NPU), 1, out=out) is out
    view = out.view(-1)
    out.zero_()
    assert view.sum() == 0  # the grown storage is the tensor's own
    text = "on the same device"
    raises(RuntimeError, text, lambda: torch.add(X.to(NPU), 1, out=torch.empty(3, 4)))


def resizing() -> None:
    ours = X.to(NPU)
    view = ours[:1]
    ours.resize_(6, 4)
    assert ours.flatten()[:12].tolist() == list(range(12))
    ours.fill_(3)
    assert view.tolist() == [[3, 3, 3, 3]]  # still the same storage
    assert ours.resize_(2).tolist() == [3, 3] and ours.untyped_storage().nbytes() == 96
    assert torch.empty(0, device=NPU).resize_(2, 2).shape == (2, 2)
    storage = ours.untyped_storage()
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(8)
    assert ours.zero_().tolist() == [0, 0]
    channels_last = torch.empty(0, device=NPU)
    channels_last.resize_(2, 3, 2, 1, memory_format=torch.channels_last)
    assert channels_last.stride() == (6, 1, 3, 3)


def storages() -> None:
    ours, other = X.to(NPU), torch.empty(0, device=NPU)
    other.set_(ours)
    assert other.data_ptr() == ours.data_ptr() and other.shape == (3, 4)
    other.set_(ours.untyped_storage(), 2, (2, 2), (4, 1))
    assert other.tolist() == [[2, 3], [6, 7]]
    flat_view = torch.empty(0, device=NPU).set_(ours.untyped_storage())
    assert flat_view.tolist() == list(range(12))
    assert other.set_().shape == (0,) and other.device == NPU
    assert ours.is_set_to(ours.view(3, 4)) and not ours.is_set_to(ours.clone())
    ours.data = torch.ones(2, device=NPU)
    assert ours.tolist() == [1, 1]
    raises(RuntimeError, "", lambda: torch.empty(0).set_(ours.untyped_storage()))
    raw = torch.empty(16, dtype=torch.uint8, device=NPU)
    raw.view(torch.float32)[1:3].view(2, 1).fill_(1.5)
    assert raw.view(torch.float32).tolist()[1:3] == [1.5, 1.5]
    assert ours.untyped_storage().cpu().nbytes() == 8
    assert X.untyped_storage().npu().device == NPU


def empty_tensors() -> None:
    nothing = torch.empty(0, 4)
    same(
        lambda x: [x + 1, x.sum(), x @ x.T, x.T.contiguous(), x.cumsum(0), x.clone(), x.nonzero()],
        nothing,
    )
    same(lambda x, y: [torch.cat([x, y]), y[x[:, 0].long()], y.copy_(y)], nothing, X)
    same(lambda x: [x[1:1].zero_(), x[:, 2:2].add_(1), x.split([0, 3])], X)
    same(lambda x: F.linear(x, torch.ones(2, 4, device=x.device)), nothing)


def items() -> None:
    ours = X.to(NPU)
    assert ours[1, 2].item() == 6 and float(ours.sum()) == 66 and int(ours.max()) == 11
    assert bool((ours >= 0).all()) and ours.tolist() == X.tolist()
    assert list(range(3))[ours[0, 2].long()] == 2  # as an index
    assert "device='npu:0'" in repr(ours) and repr(X.t()[1]) in repr(ours.t()[1].cpu())
    assert torch.equal(ours, X.to(NPU)) and torch.allclose(ours, ours + 1e-9)
    assert torch.tensor(True, device=NPU).item() is True
    assert torch.tensor(1 + 1j, device=NPU).item() == 1 + 1j


def mixed_devices_are_refused() -> None:
    ours = X.to(NPU)
    text = "on the same device"
    raises(RuntimeError, text, lambda: ours + X)
    raises(RuntimeError, text, lambda: X + ours[0, 0])
    raises(RuntimeError, text, lambda: ours @ X.T)
    raises(RuntimeError, text, lambda: ours.index_select(0, torch.tensor([1])))
    raises(RuntimeError, text, lambda: torch.cat([ours, X]))
    raises(RuntimeError, text, lambda: F.embedding(torch.tensor([1]), ours))
    raises(RuntimeError, text, lambda: ours + X.to("npu:1"))
    raises(RuntimeError, text, lambda: F.linear(ours, X))
    assert (ours + torch.tensor(2.0)).device == NPU  # a number on the CPU is welcome everywhere
    assert torch.where(ours > 3, ours, torch.tensor(0.0)).sum() == 60


def modules() -> None:
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    expected = layer(X)
    ours = copy.deepcopy(layer).to(NPU)
    assert {parameter.device for parameter in ours.parameters()} == {NPU}
    torch.testing.assert_close(ours(X.to(NPU)).cpu(), expected)
    assert torch.equal(ours.cpu()(X), expected) and layer.npu()(X.to(NPU)).device == NPU
    assert nn.Embedding(5, 3, device="npu")(torch.tensor([1, 4], device=NPU)).shape == (2, 3)
    ours.to(NPU).load_state_dict(layer.state_dict())
    batch = torch.randn(1, 2, 5, 5)
    convolution = nn.Conv2d(2, 3, 3)
    ours = copy.deepcopy(convolution).to(NPU)
    torch.testing.assert_close(ours(batch.to(NPU)).cpu(), convolution(batch))
    ours(batch.to(NPU)).square().sum().backward()
    convolution(batch).square().sum().backward()
    torch.testing.assert_close(ours.weight.grad.cpu(), convolution.weight.grad)
    torch.testing.assert_close(ours.bias.grad.cpu(), convolution.bias.grad)


def autograd() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 2)
    ours = copy.deepcopy(layer).to(NPU)
    layer(X).square().sum().backward()
    ours(X.to(NPU)).square().sum().backward()
    assert torch.equal(ours.weight.grad.cpu(), layer.weight.grad)
    assert ours.weight.grad.device == NPU
    torch.optim.AdamW(ours.parameters()).step()
    leaf = X.to(NPU).requires_grad_()
    (leaf[1:] * torch.arange(4.0, device=NPU)).cpu().sum().backward()
    assert leaf.grad.sum(1).tolist() == [0, 6, 6]
    raises(RuntimeError, "leaf Variable", lambda: leaf.add_(1))
    with torch.inference_mode():
        frozen = X.to(NPU) + 1
        assert frozen.is_inference() and frozen[0].add_(1).tolist() == [2, 3, 4, 5]
        same(lambda x, out: torch.add(x, 1, out=out), X, torch.empty(0))
    assert (frozen + 1).sum() == 66 + 12 * 2 + 4


def attention() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 4, 6, 8).unbind(0)
    mask = torch.ones(6, 6, dtype=torch.bool).tril()
    for keywords in ({}, {"is_causal": True}, {"attn_mask": mask}):
        expected = F.scaled_dot_product_attention(q, k, v, **keywords)
        ours = {name: on_npu(value) for name, value in keywords.items()}
        got = F.scaled_dot_product_attention(q.to(NPU), k.to(NPU), v.to(NPU), **ours)
        torch.testing.assert_close(got.cpu(), expected)
    few = on_npu(k[:, :2])
    assert F.scaled_dot_product_attention(q.to(NPU), few, few, enable_gqa=True).shape == q.shape


def random_numbers() -> None:
    torch.manual_seed(3)
    expected = torch.randn(4), torch.rand(2), torch.randint(9, (5,)), torch.randperm(6)
    torch.manual_seed(3)
    got = [
        torch.randn(4, device=NPU),
        torch.rand(2, device=NPU),
        torch.randint(9, (5,), device=NPU),
        torch.randperm(6, device=NPU),
    ]
    for want, have in zip(expected, got, strict=True):
        assert have.device == NPU and torch.equal(have.cpu(), want)
    ours = torch.Generator(device="npu").manual_seed(3)
    theirs = torch.Generator().manual_seed(3)
    assert ours.device == NPU and ours.initial_seed() == 3
    zeros = torch.zeros(5)
    for _ in range(2):
        have, want = (
            zeros.to(NPU).exponential_(generator=ours),
            zeros.exponential_(generator=theirs),
        )
        assert torch.equal(have.cpu(), want)
    probabilities = torch.tensor([0.1, 0.9])
    assert torch.equal(
        probabilities.to(NPU).multinomial(1, generator=ours).cpu(),
        probabilities.multinomial(1, generator=theirs),
    )
    raises(RuntimeError, "generator", lambda: torch.randn(2, device=NPU, generator=theirs))
    state = torch.npu.get_rng_state()
    first = torch.rand(3, device=NPU)
    torch.rand(3)  # the CPU's numbers do not matter here
    torch.npu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device=NPU), first)
    torch.npu.manual_seed(5)
    first = torch.ones(20, device=NPU).bernoulli_(0.5)
    torch.npu.manual_seed(5)
    assert torch.equal(torch.ones(20, device=NPU).bernoulli_(0.5), first)
    with torch.random.fork_rng(devices=[0], device_type="npu"):
        torch.rand(1, device=NPU)


def pinned_memory() -> None:
    pinned = torch.empty(4, pin_memory=True)
    assert pinned.is_pinned() and pinned.device.type == "cpu" and pinned[2:].is_pinned()
    assert not torch.empty(4).is_pinned() and not torch.zeros(4, device=NPU).is_pinned()
    assert X.pin_memory().is_pinned() and torch.equal(X.pin_memory(), X)
    assert torch.zeros(0, pin_memory=True).shape == (0,)
    assert torch.zeros(3, dtype=torch.int32, pin_memory=True).numpy().sum() == 0
    pinned.copy_(torch.ones(4, device=NPU), non_blocking=True)
    assert pinned.tolist() == [1, 1, 1, 1] and pinned.to(NPU, non_blocking=True).sum() == 4
    text = "nly dense CPU tensors can be pinned"
    raises(RuntimeError, text, lambda: X.to(NPU).pin_memory())
    raises(RuntimeError, text, lambda: torch.empty(2, device=NPU, pin_memory=True))


def custom_operators() -> None:
    library = torch.library.Library("npu_cases", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "PrivateUse1")
    assert torch.ops.npu_cases.twice(X.to(NPU))[1, 1] == 10
    raises(NotImplementedError, "npu_cases::twice", lambda: torch.ops.npu_cases.twice(X))

    library.define("fill(Tensor(a!) x, Tensor slots, float value) -> ()")

    def fill(x: torch.Tensor, slots: torch.Tensor, value: float) -> None:
        assert x.device.type == "npu"
        x[slots] = value

    library.impl("fill", fill, "PrivateUse1")
    ours = X.to(NPU)
    torch.ops.npu_cases.fill(ours[1:], torch.tensor([1], device=NPU), 0.5)
    assert ours[2].tolist() == [0.5] * 4 and ours[1].tolist() == [4, 5, 6, 7]

    library.define("on_cpu(Tensor(a!) x) -> Tensor(a!)")  # has a kernel for the CPU only
    library.impl("on_cpu", lambda x: x.add_(1), "CPU")
    assert torch.ops.npu_cases.on_cpu(ours) is ours and ours[0].tolist() == [1, 2, 3, 4]

    library.define("part(Tensor(a) x) -> Tensor(a)")
    library.impl("part", lambda x: x[1:], "CPU")
    torch.ops.npu_cases.part(ours).fill_(3)
    assert ours[1:].eq(3).all() and ours[0].tolist() == [1, 2, 3, 4]

    library.define("nowhere(Tensor x) -> Tensor")
    raises(NotImplementedError, "npu_cases::nowhere", lambda: torch.ops.npu_cases.nowhere(ours))

    @torch.library.custom_op("npu_cases::scaled", mutates_args=())
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by

    assert scaled(ours, 2.0).device == NPU


def streams_and_events() -> None:
    first, second = torch.npu.Stream(), torch.npu.Stream(device="npu:1")
    assert first.device == NPU and second.device.index == 1 and first != torch.npu.current_stream()
    start, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    with torch.npu.stream(first):
        assert torch.npu.current_stream() == first and isinstance(first, torch.npu.Stream)
        start.record()
        total = torch.ones(1000, device=NPU).sum()
        end.record(first)
    assert torch.npu.current_stream() == torch.npu.default_stream()
    assert total == 1000 and start.elapsed_time(end) >= 0
    assert start.query() and end.query() and first.query()
    first.wait_stream(torch.npu.current_stream())
    torch.npu.current_stream().wait_event(end)
    end.wait()
    end.wait(first)
    end.synchronize()
    first.synchronize()
    first.record_event(torch.npu.Event())
    assert isinstance(first.record_event(), torch.Event)
    total.record_stream(first)
    torch.npu.synchronize()
    torch.npu.synchronize("npu:1")
    torch.npu.set_stream(first)
    seen = []
    thread = threading.Thread(target=lambda: seen.append(torch.npu.current_stream()))
    thread.start()
    thread.join()
    assert seen == [torch.npu.default_stream()] and torch.npu.current_stream() == first
    torch.npu.set_stream(torch.npu.default_stream())
    assert torch.Event(device="npu").query()


def accelerator() -> None:
    assert torch.accelerator.is_available() and torch.npu.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.accelerator.device_count() == torch.npu.device_count() == 2
    assert torch.get_device_module("npu") is torch.npu and torch.get_device_module() is torch.npu
    torch.accelerator.synchronize()
    with torch.accelerator.device_index(1):
        assert torch.npu.current_device() == 1 and torch.zeros(1, device="npu").device.index == 1
    with torch.npu.device("npu:1"):
        assert torch.npu.current_device() == 1
    torch.npu.set_device("npu:1")
    assert torch.npu.current_device() == 1 and torch.ones(2, device="npu").sum().device.index == 1
    torch.npu.set_device(0)
    moved = torch.ones(2, device="npu:1").to("npu:0")
    assert moved.device == NPU and moved.to("npu:1").tolist() == [1, 1]
    raises(RuntimeError, "there is no npu:2", lambda: torch.zeros(1, device="npu:2"))
    raises(RuntimeError, "there is no npu:9", lambda: torch.npu.set_device(9))
    assert torch.npu.get_device_name() == "Ascend910B1"
    raises(ValueError, "expected an npu device", lambda: torch.npu.memory_allocated("cpu"))


def memory() -> None:
    free, total = torch.npu.mem_get_info()
    assert total == 1 << 30 == torch.npu.get_device_properties(0).total_memory
    before = torch.npu.memory_allocated()
    block = torch.empty(1 << 20, device=NPU)
    assert torch.npu.memory_allocated() == before + (4 << 20) and torch.npu.memory_allocated(1) == 0
    assert torch.npu.mem_get_info() == (free - (4 << 20), total)
    doubled = block.cumsum(0)
    assert torch.npu.memory_allocated() == before + (8 << 20)  # whatever kernel made it
    del block, doubled
    assert torch.npu.memory_allocated() == before == torch.npu.memory_reserved()
    assert torch.npu.max_memory_allocated() >= before + (8 << 20)
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.memory_stats()["allocated_bytes.all.peak"] == before
    raises(torch.OutOfMemoryError, "NPU out of memory", lambda: torch.empty(1 << 31, device=NPU))
    torch.npu.empty_cache()
    # As with torch_npu 2.9: its allocator is not one that torch.accelerator knows.
    raises(RuntimeError, "not a DeviceAllocator", torch.accelerator.memory_stats)


def deep_copies_and_files() -> None:
    ours = X.to(NPU)
    one, two = copy.deepcopy([ours[0], ours[1]])
    assert one.device == NPU and one.untyped_storage()._cdata == two.untyped_storage()._cdata
    one.fill_(9)
    assert ours[0].tolist() == [0, 1, 2, 3]
    parameter = copy.deepcopy(nn.Parameter(ours))
    assert parameter.device == NPU and parameter.requires_grad
    restored = pickle.loads(pickle.dumps(ours[1:]))
    assert restored.device == NPU and restored.tolist() == X[1:].tolist()
    file = io.BytesIO()
    torch.save({"x": ours, "y": ours[0]}, file)
    for target in (None, "cpu", "npu:1"):
        file.seek(0)
        loaded = torch.load(file, map_location=target)
        assert loaded["x"].device == torch.device(target or NPU) and loaded["y"].tolist() == [
            0,
            1,
            2,
            3,
        ]
        assert loaded["x"].data_ptr() == loaded["y"].data_ptr()
    assert torch.equal(copy.copy(ours), ours)
    raises(RuntimeError, "graph leaves", lambda: copy.deepcopy(parameter * 1))


def collectives_are_refused() -> None:
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        for call in (dist.all_reduce, lambda x: dist.broadcast(x, 0), lambda x: dist.isend(x, 0)):
            raises(
                (RuntimeError, ValueError), "", lambda call=call: call(torch.ones(2, device=NPU))
            )
        dist.all_reduce(torch.ones(2))
    finally:
        dist.destroy_process_group()


def fake_tensors_and_graphs() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert (torch.ones(2, 3, device=NPU) @ torch.ones(3, 4, device=NPU)).shape == (2, 4)

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).relu().sum(-1)

    for backend in ("eager", "aot_eager"):
        compiled = torch.compile(function, backend=backend, fullgraph=True)
        assert torch.equal(compiled(X.to(NPU)).cpu(), function(X))


def runtime_sees_an_npu() -> None:
    from ascend_runtime import device

    assert device.is_npu() and device.is_npu(X.to(NPU)) and device.is_npu(NPU)
    assert not device.is_npu(X)


def errors_leave_arguments_alone() -> None:
    ours = X.to(NPU)
    raises(RuntimeError, "", lambda: torch.mm(ours, ours, out=torch.empty(0, device=NPU)))
    raises(IndexError, "", lambda: ours[torch.tensor([7], device=NPU)])
    assert torch.equal(ours.cpu(), X)


CASES = {
    name: value
    for name, value in list(globals().items())
    if inspect.isfunction(value)
    and value.__module__ == __name__
    and not inspect.signature(value).parameters
}


def main() -> None:
    """Run all cases."""
    results = {}
    for name, case in CASES.items():
        if name != "main":
            try:
                case()
                results[name] = ""
            except BaseException:
                results[name] = traceback.format_exc()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
