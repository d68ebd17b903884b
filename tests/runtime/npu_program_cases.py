"""What whole programs want of the device; each function is a test, run by npu_cases.py."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import torch
import torch.nn.functional as F
from npu_cases_kit import NPU, X, on_npu, raises, same
from torch import nn


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
