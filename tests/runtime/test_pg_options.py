"""The options of process groups, with a stand-in for torch_npu's class."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from torch.distributed import Backend

from ascend_runtime.collectives import pg_options


class Options:
    """As torch_npu's: a fresh one has no configuration."""


@pytest.fixture
def torch_npu(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(Options=Options)
    module = SimpleNamespace(_distributed_c10d=SimpleNamespace(ProcessGroupHCCL=group))
    monkeypatch.setitem(sys.modules, "torch_npu", SimpleNamespace(_C=module))


@pytest.mark.usefixtures("torch_npu")
@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("tp", {"hccl_buffer_size": 200}),
        ("pp", {"hccl_buffer_size": 200}),
        ("world", {"hccl_buffer_size": 200}),
        ("anonymous", {"hccl_buffer_size": 200}),
        ("eplb", {"hccl_buffer_size": 200}),
        ("dynamic_eplb", {"hccl_buffer_size": 100}),
        ("dp", {"hccl_buffer_size": 50}),
        ("dcp", {"hccl_buffer_size": 200}),
        ("mc2", None),
        ("mc2_1", None),
        ("dynamic_mc2", None),
    ],
)
def test_size_of_the_buffer(name: str, config: dict | None) -> None:
    for backend in ("hccl", "HCCL", "cpu:gloo,npu:hccl"):
        options = pg_options(name, backend)
        assert isinstance(options, Options)
        assert getattr(options, "hccl_config", None) == config


@pytest.mark.usefixtures("torch_npu")
def test_each_group_has_its_own_options() -> None:
    first, second = pg_options("tp", "hccl"), pg_options("tp", "hccl")
    assert first is not second
    assert first.hccl_config is not second.hccl_config


@pytest.mark.usefixtures("torch_npu")
@pytest.mark.parametrize("backend", ["gloo", "nccl", "xccl", Backend("gloo"), "cpu:gloo,cuda:nccl"])
def test_other_backends_get_none(backend: str) -> None:
    assert pg_options("tp", backend) is None


def test_none_without_torch_npu(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    assert pg_options("tp", "hccl") is None
