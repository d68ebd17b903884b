"""Kernels in Triton's interpreter: what has to be so before Triton is imported, and core counts.

The folder needs a process of its own, with TRITON_INTERPRET=1 (as `ci/test.sh` runs it).
`ascend_runtime` is the source tree's, vLLM the patched wheel's.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    raise pytest.UsageError("run tests/kernels by itself: TRITON_INTERPRET=1 pytest tests/kernels")
# vLLM takes Triton without a device for one that is to come if no GPU is visible.
os.environ["CUDA_VISIBLE_DEVICES"] = ""

sys.path.append(str(Path(__file__).parents[1] / "patched"))

import interpreter
from patched_kit import ENVIRONMENT

os.environ.update(ENVIRONMENT)
interpreter.prepare()


@pytest.fixture(params=[(1, 1), (2, 3), (24, 48)], ids=lambda pair: f"cores{pair[0]}-{pair[1]}")
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """Run with one core, with a few (so that loops over tasks have remainders), and with many."""
    monkeypatch.setenv("ASCEND_RUNTIME_CORES", f"{request.param[0]},{request.param[1]}")
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The same random tensors in each run."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def vllm_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the patched vLLM, on the path behind the source tree's `ascend_runtime`."""
    from patched_kit import install

    site = install(tmp_path_factory.mktemp("patched")).site
    sys.path.append(str(site))
    interpreter.prepare_vllm()
    return site
