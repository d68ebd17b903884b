"""What tensors of the device must do; each function is a test, run by npu_cases.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from npu_cases_kit import NPU, X, raises, same


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
