"""P4: `os.sched_yield` is for Python versions that release the GIL in it, and not for Arm."""

from __future__ import annotations

import ast
import os
import platform as machine
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from patched_kit import forks, fresh
from vllm.platforms.interface import CpuArchEnum, Platform

NAME = "vllm.distributed.utils"


@pytest.mark.parametrize(
    ("name", "used"),
    [
        ("x86_64", True),
        ("aarch64", False),
        ("AArch64", False),
        ("arm64", False),
        ("armv7l", False),
        ("riscv64", True),
        ("ppc64le", True),
    ],
)
def test_architecture_decides(monkeypatch: pytest.MonkeyPatch, name: str, used: bool) -> None:
    monkeypatch.setattr(machine, "machine", lambda: name)
    calls = []
    monkeypatch.setattr(os, "sched_yield", lambda: calls.append("sched_yield"))
    monkeypatch.setattr(time, "sleep", lambda seconds: calls.append(("sleep", seconds)))
    utils = fresh(NAME)
    assert utils.USE_SCHED_YIELD is used
    utils.sched_yield()
    assert calls == ["sched_yield" if used else ("sleep", 0)]


@pytest.mark.parametrize("arm", [False, True])
@pytest.mark.parametrize(
    ("version", "used"),
    [
        ((3, 9, 20), False),
        ((3, 10, 7), False),
        ((3, 10, 8), True),
        ((3, 11, 0), False),
        ((3, 11, 1), True),
        ((3, 12, 0), True),
    ],
)
def test_version_decides_elsewhere(installed, monkeypatch, version, used: bool, arm: bool) -> None:
    source = Path(installed.site, "vllm/distributed/utils.py").read_text()
    (value,) = (
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "USE_SCHED_YIELD"
    )
    monkeypatch.setattr(machine, "machine", lambda: "aarch64" if arm else "x86_64")
    names = {
        "sys": SimpleNamespace(version_info=version),
        "Platform": Platform,
        "CpuArchEnum": CpuArchEnum,
    }
    assert eval(ast.unparse(value), names) is (used and not arm)


ENTRIES = (
    "vllm.distributed.utils",
    "vllm.platforms.interface",
    "vllm.platforms",
    "vllm.distributed",
    "vllm.distributed.device_communicators.shm_broadcast",
)
ENTER = """
import {entry}
import sys
from vllm.distributed.device_communicators import shm_broadcast
from vllm.distributed import utils

print(utils.USE_SCHED_YIELD, shm_broadcast.sched_yield is utils.sched_yield)
"""


def test_no_cycle_whatever_is_imported_first() -> None:
    used = sys.version_info >= (3, 11, 1) and Platform.get_cpu_architecture() != CpuArchEnum.ARM
    output = forks({entry: ENTER.format(entry=entry) for entry in ENTRIES})
    assert output == dict.fromkeys(ENTRIES, f"{used} True\n")
