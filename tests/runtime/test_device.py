"""Is this an NPU, and which chip."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from ascend_runtime import device

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASCEND_RUNTIME_DEVICE", "ASCEND_RUNTIME_SOC"):
        monkeypatch.delenv(name, raising=False)
    for name in ("vllm.platforms", "vllm_ascend", "vllm_ascend._build_info", "torch_npu"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(device, "_known_soc", None)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch):
    def use(**attributes: str) -> None:
        module = ModuleType("vllm.platforms")
        module._current_platform = SimpleNamespace(**attributes) if attributes else None
        monkeypatch.setitem(sys.modules, "vllm.platforms", module)

    return use


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch):
    def use(soc: object) -> None:
        module = ModuleType("torch_npu")
        module.npu = SimpleNamespace(get_soc_version=lambda: soc)
        monkeypatch.setitem(sys.modules, "torch_npu", module)

    return use


def test_no_npu_here() -> None:
    assert not device.is_npu()
    assert device.soc_name() is None
    assert not device.is_310p()


def test_tensor_and_device_are_asked_themselves(monkeypatch) -> None:
    assert not device.is_npu(torch.zeros(1))
    assert not device.is_npu(torch.device("cpu"))
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    assert not device.is_npu(torch.zeros(1))
    assert device.is_npu(SimpleNamespace(type="npu"))


@pytest.mark.parametrize(("value", "answer"), [("npu", True), ("cpu", False), ("cuda", False)])
def test_the_environment_decides_over_the_platform(monkeypatch, platform, value, answer) -> None:
    platform(device_type="npu", device_name="npu")
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", value)
    assert device.is_npu() is answer


@pytest.mark.parametrize(
    ("kind", "name", "answer"),
    [("npu", "npu", True), ("cpu", "npu", True), ("npu", "x", True), ("cuda", "cuda", False)],
)
def test_a_resolved_platform_answers(monkeypatch, platform, kind, name, answer) -> None:
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    platform(device_type=kind, device_name=name)
    assert device.is_npu() is answer


@pytest.mark.parametrize(("name", "answer"), [("npu", True), ("privateuseone", False)])
def test_before_that_the_name_of_the_backend(monkeypatch, platform, name, answer) -> None:
    platform()
    monkeypatch.setattr(torch._C, "_get_privateuse1_backend_name", lambda: name)
    assert device.is_npu() is answer


@pytest.mark.parametrize("soc", ["A2", "A3", "310P", "A5"])
def test_soc_from_the_environment(monkeypatch, soc: str) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", soc)
    assert device.soc_name() == soc
    assert device.is_310p() is (soc == "310P")


def test_misspelt_soc_is_refused(monkeypatch) -> None:
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "310p")
    with pytest.raises(ValueError, match="ASCEND_RUNTIME_SOC=310p: it must be one of A2, A3, 310P"):
        device.is_310p()


@pytest.mark.parametrize(
    ("number", "soc"),
    [
        (199, None), (200, "310P"), (205, "310P"), (206, None), (220, "A2"), (225, "A2"),
        (226, None), (249, None), (250, "A3"), (255, "A3"), (256, None), (260, "A5"), (261, None),
        (None, None),
    ],
)  # fmt: skip
def test_soc_from_torch_npu(platform, torch_npu, number, soc) -> None:
    platform(device_type="npu", device_name="npu")
    torch_npu(number)
    assert device.soc_name() == soc


@pytest.mark.parametrize(
    ("built_for", "soc"), [("A3", "A3"), ("_310P", "310P"), ("a5", "A5"), ("B9", "A2")]
)
def test_what_the_plugin_was_built_for_comes_first(
    monkeypatch, platform, torch_npu, built_for, soc
) -> None:
    platform(device_type="npu", device_name="npu")
    torch_npu(220)
    info = ModuleType("vllm_ascend._build_info")
    info.__device_type__ = built_for
    monkeypatch.setitem(sys.modules, "vllm_ascend", ModuleType("vllm_ascend"))
    monkeypatch.setitem(sys.modules, "vllm_ascend._build_info", info)
    assert device.soc_name() == soc


def test_the_answer_is_kept_but_not_a_missing_one(platform, torch_npu) -> None:
    platform(device_type="npu", device_name="npu")
    assert device.soc_name() is None
    torch_npu(250)
    assert device.soc_name() == "A3"
    torch_npu(200)
    assert device.soc_name() == "A3"


def test_without_an_npu_nobody_is_asked(torch_npu) -> None:
    torch_npu(220)
    assert device.soc_name() is None


def test_import_is_light() -> None:
    code = (
        "import sys, ascend_runtime.device as d; d.is_npu(); d.soc_name();"
        "print([m for m in ('vllm', 'torch_npu', 'triton') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
