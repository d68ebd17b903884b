"""Which implementation dispatch takes: by device, needs, chip, arguments and force."""

from __future__ import annotations

import copy
import logging
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ascend_runtime import device, dispatch, operations
from ascend_runtime.operations import OPERATIONS, Implementation, Operation

VENDOR = Implementation("vendor", "ways:vendor", ("ways.operator",), ("A2",), "ways:fits")
KERNEL = Implementation("kernel", "ways:kernel", ("triton",), ("A2", "A3"))
REFERENCE = Implementation("reference", "ways:reference")


class Npu(torch.Tensor):
    """A tensor that says it is on an NPU; its values are in host memory."""

    @property
    def device(self):
        return SimpleNamespace(type="npu")


def on_npu(*values: float) -> Npu:
    return torch.tensor(values).as_subclass(Npu)


def fits(*args, **kwargs) -> bool:
    tensor = next(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    return len(tensor) == 2


@pytest.fixture
def ways(monkeypatch):
    """Functions that say who they are, as the implementations of the operation `toy.add`."""
    module = ModuleType("ways")
    module.operator = object()
    module.fits = fits
    for kind in operations.KINDS:
        setattr(module, kind, lambda *args, kind=kind, **kwargs: (kind, len(args), kwargs))
    monkeypatch.setitem(sys.modules, "ways", module)
    monkeypatch.setitem(OPERATIONS, "toy.add", Operation("toy.add", (VENDOR, KERNEL, REFERENCE)))
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "A2")
    monkeypatch.setattr(dispatch, "_has_triton", lambda: True)
    return module


def upstream(x, y=None, *, z=None):
    """Upstream's text."""
    return "upstream"


def decorated():
    return dispatch.op("toy.add")(upstream)


def who(*args, **kwargs) -> str:
    said = decorated()(*args, **kwargs)
    return said if isinstance(said, str) else said[0]


def test_device_decides(ways):
    assert who(torch.ones(2)) == "reference"
    assert who(on_npu(1, 2)) == "vendor"
    assert who(torch.ones(2, device="meta")) == "upstream"
    assert who(3) == "upstream"


def test_first_tensor_decides_wherever_it_stands(ways):
    assert who(None, torch.ones(1)) == "reference"
    assert who(None, z=on_npu(1, 2)) == "vendor"
    assert who(torch.ones(1), on_npu(1, 2)) == "reference"


def test_arguments_arrive_as_given(ways):
    assert decorated()(torch.ones(1), 2, z=3) == ("reference", 2, {"z": 3})


def test_what_does_not_fit_goes_to_the_next(ways):
    assert who(on_npu(1, 2, 3)) == "kernel"


def test_missing_needs_and_chips(ways, monkeypatch):
    del ways.operator
    assert who(on_npu(1, 2)) == "kernel"
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    assert who(on_npu(1, 2)) == "reference"
    ways.operator = object()
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "A3")
    assert who(on_npu(1, 2)) == "reference"
    monkeypatch.setattr(dispatch, "_has_triton", lambda: True)
    assert who(on_npu(1, 2)) == "kernel"
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "310P")
    assert who(on_npu(1, 2)) == "reference"


def test_what_is_loaded_and_known_later_is_taken(ways, monkeypatch):
    operator = ways.__dict__.pop("operator")
    function = decorated()
    assert function(on_npu(1, 2))[0] == "kernel"
    ways.operator = operator
    assert function(on_npu(1, 2))[0] == dispatch.choice("toy.add", "npu") == "vendor"
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "310P")
    assert function(on_npu(1, 2))[0] == dispatch.choice("toy.add", "npu") == "reference"


def test_reference_on_npu_is_warned_of_once(ways, monkeypatch, caplog):
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    del ways.operator
    caplog.set_level(logging.WARNING)
    function = decorated()
    function(torch.ones(2))
    assert not caplog.records
    for _ in range(3):
        function(on_npu(1, 2))
    (record,) = caplog.records
    assert "toy.add" in record.getMessage()
    assert "there is no ways.operator, triton" in record.getMessage()


def test_function_keeps_its_name_and_text(ways):
    assert decorated().__name__ == "upstream"
    assert decorated().__doc__ == "Upstream's text."
    assert decorated().__wrapped__ is upstream


@pytest.mark.parametrize("kind", ["cuda", "hip", "xpu"])
def test_gpu_build_gets_the_same_object_back(ways, monkeypatch, kind):
    monkeypatch.setattr(torch.version, kind, "1.0", raising=False)
    jitted = object()
    assert decorated() is upstream
    assert dispatch.kernel("toy.add")(jitted) is jitted


def test_override_wins_on_every_device_and_ends(ways):
    for choice in ("upstream", "kernel", "reference"):
        with dispatch.override(choice):
            assert {who(torch.ones(2)), who(on_npu(1, 2)), who(3)} == {choice}
    with dispatch.override("vendor"):
        assert who(torch.ones(2)) == "vendor"
        assert who(torch.ones(3)) == "reference"
    assert who(on_npu(1, 2)) == "vendor"


def test_a_forced_kernel_that_does_not_fit_leaves_it_to_the_reference(ways, monkeypatch):
    kernel = Implementation("kernel", KERNEL.function, KERNEL.needs, fits="ways:fits")
    monkeypatch.setitem(OPERATIONS, "toy.add", Operation("toy.add", (kernel, REFERENCE)))
    with dispatch.override("kernel"):
        assert who(torch.ones(2)) == "kernel"
        assert who(torch.ones(3)) == "reference"


def test_override_of_one_topic_or_operation(ways):
    function = decorated()
    other = dispatch.op("rejection.greedy")(lambda x: "other")
    with dispatch.override("upstream", "toy"), dispatch.override("upstream", "rejection"):
        assert function(torch.ones(2)) == "upstream"
        with dispatch.override("kernel", "toy.add"):
            assert function(torch.ones(2))[0] == "kernel"
            with dispatch.override("reference"):
                assert function(torch.ones(2))[0] == "reference", "the innermost wins"
        with dispatch.override("vendor"):
            assert function(torch.ones(2))[0] == "vendor"
            assert other(torch.ones(1)) == "other", "what has no such way asks the next one out"
        assert function(torch.ones(2)) == "upstream"
    with dispatch.override("upstream", "rejection"):
        assert other(torch.ones(1)) == "other"
        assert function(torch.ones(2))[0] == "reference"


def test_environment_forces(ways, monkeypatch):
    function = decorated()
    monkeypatch.setenv("ASCEND_RUNTIME_IMPL", "kernel")
    assert function(torch.ones(2))[0] == "kernel"
    monkeypatch.setenv("ASCEND_RUNTIME_IMPL", "kernel, toy.add=upstream,rejection=reference")
    assert function(torch.ones(2)) == "upstream"
    with dispatch.override("reference"):
        assert function(torch.ones(2))[0] == "reference", "an override is stronger"
    monkeypatch.setenv("ASCEND_RUNTIME_IMPL", "toy=upstream, ")
    assert function(torch.ones(2)) == "upstream"
    monkeypatch.delenv("ASCEND_RUNTIME_IMPL")
    assert function(torch.ones(2))[0] == "reference"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fast", "'fast' must be one of upstream, vendor, kernel, reference"),
        ("toy.sub=kernel", "there is no operation or topic 'toy.sub'"),
        ("toy.add=", "'' must be one of"),
        ("rejection.greedy=vendor", "rejection.greedy has only kernel, reference and upstream"),
    ],
)
def test_bad_force_is_named(ways, monkeypatch, text, says):
    monkeypatch.setenv("ASCEND_RUNTIME_IMPL", text)
    with pytest.raises(ValueError, match=says) as caught:
        who(torch.ones(2))
    assert str(caught.value).startswith(f"ASCEND_RUNTIME_IMPL={text}: ")
    assert "\n" not in str(caught.value)


def test_overrides_that_overlap(ways):
    """As of two threads: each ends by itself."""
    one, other = dispatch.override("upstream"), dispatch.override("kernel", "toy")
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    assert who(torch.ones(2)) == "kernel"
    other.__exit__(None, None, None)
    assert who(torch.ones(2)) == "reference"


def test_bad_override_changes_nothing(ways):
    with pytest.raises(ValueError, match="no operation or topic"), dispatch.override("kernel", "x"):
        pass
    assert who(torch.ones(2)) == "reference"


def test_forced_kernel_without_triton_says_so(ways, monkeypatch):
    monkeypatch.setattr(dispatch, "_has_triton", lambda: False)
    with (
        dispatch.override("kernel"),
        pytest.raises(RuntimeError, match=r"toy\.add: its kernel needs triton"),
    ):
        who(torch.ones(2))


def test_an_all_override_skips_what_has_no_such_way(ways, monkeypatch):
    monkeypatch.setitem(OPERATIONS, "toy.add", Operation("toy.add", (REFERENCE,)))
    with dispatch.override("kernel"):
        assert who(torch.ones(2)) == "reference"


class Jitted:
    """Looks like a Triton kernel."""

    arg_names = ("x", "n")

    def __getitem__(self, grid):
        return lambda *args, **kwargs: ("launched", grid, len(args), kwargs)


def test_kernel_keeps_its_launch_syntax(ways):
    kernel = dispatch.kernel("toy.add")(Jitted())
    x = torch.ones(2)
    assert kernel[(3,)](x, n=2) == ("reference", 1, {"n": 2})
    assert kernel[(3,)](on_npu(1, 2), n=2) == ("vendor", 1, {"n": 2})
    with dispatch.override("upstream"):
        assert kernel[(3,)](x, n=2) == ("launched", (3,), 1, {"n": 2})
    assert kernel[(3,)](None, n=2) == ("launched", (3,), 1, {"n": 2})
    assert kernel.arg_names == ("x", "n")
    with pytest.raises(AttributeError):
        _ = kernel.nothing


def test_kernel_can_be_copied(ways):
    wrapped = dispatch.kernel("toy.add")(lambda *args: None)
    assert isinstance(copy.copy(wrapped), dispatch._Kernel)


def test_kernel_over_a_plain_function(ways):
    """vLLM's stand-in for `triton.jit` gives the function back."""
    kernel = dispatch.kernel("toy.add")(upstream)
    assert kernel[(3,)](torch.ones(2))[0] == "reference"
    assert kernel.__name__ == "upstream"


def test_unknown_operation_is_named():
    with pytest.raises(ValueError, match=r"no operation is named 'conv\.fast'"):
        dispatch.op("conv.fast")
    with pytest.raises(ValueError, match="no operation is named"):
        dispatch.kernel("conv.fast")


def test_choice_is_told_without_a_call(ways):
    assert dispatch.choice("toy.add", "npu") == "vendor"
    assert dispatch.choice("toy.add", "cpu") == "reference"
    assert dispatch.choice("toy.add", "cuda") == "upstream"
    with dispatch.override("kernel"):
        assert dispatch.choice("toy.add", "cuda") == "kernel"


def test_dynamo_traces_through(ways):
    def plain(x, y=None):
        return x + 1

    def matrix(x, y=None):
        return x * 2

    ways.reference, ways.vendor, ways.fits = plain, matrix, lambda x, y=None: x.dim() == 2
    function = decorated()
    compiled = torch.compile(lambda x: function(x) - 3, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [-1, -1]
    with dispatch.override("vendor"):
        compiled = torch.compile(lambda x: function(x) - 4, backend="eager", fullgraph=True)
        assert compiled(torch.ones(1, 2)).tolist() == [[-2, -2]]
        assert compiled(torch.ones(2)).tolist() == [-2, -2]


def test_dynamo_traces_a_kernel_launch(ways):
    ways.reference = lambda x: x.add_(1)
    kernel = dispatch.kernel("toy.add")(upstream)

    def body(x):
        out = x.clone()
        kernel[(1,)](out)
        return out

    compiled = torch.compile(body, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_cores(monkeypatch):
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", "24,48")
    assert device.cores() == (24, 48)
    for bad in ("24", "a,b", "0,1", "1,2,3"):
        monkeypatch.setenv("ASCEND_RUNTIME_CORES", bad)
        with pytest.raises(ValueError, match=f"ASCEND_RUNTIME_CORES={bad}: "):
            device.cores()
