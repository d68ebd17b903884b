"""Whether vLLM runs on an Ascend NPU, and on which chip.

Every answer is asked for at call time, is cheap, and needs neither torch_npu nor vLLM: without them
there is no NPU. Nothing here resolves vLLM's platform or opens a device context in a process that
has none, but for the last resort of `soc_name`.
"""

from __future__ import annotations

import functools
import os
import sys
from importlib import import_module
from typing import Final

import torch

SOCS: Final = ("A2", "A3", "310P", "A5")
#: What `torch_npu.npu.get_soc_version()` returns: first and last number of each chip.
_SOC_NUMBERS: Final = {"310P": (200, 205), "A2": (220, 225), "A3": (250, 255), "A5": (260, 260)}
_known_soc: str | None = None


def is_npu(x: torch.Tensor | torch.device | None = None) -> bool:
    """Whether `x`, or without it the process, is on an Ascend NPU.

    A tensor or a device is asked for its type. Without one the answer is ASCEND_RUNTIME_DEVICE if
    that is set ("npu" for yes), else vLLM's platform if it is resolved already, else whether
    torch's out-of-tree backend is named "npu", as torch_npu names it when it is loaded.
    """
    if isinstance(x, torch.Tensor):
        return x.device.type == "npu"
    if x is not None:
        return x.type == "npu"
    chosen = os.environ.get("ASCEND_RUNTIME_DEVICE")
    if chosen:
        return chosen == "npu"
    platform = getattr(sys.modules.get("vllm.platforms"), "_current_platform", None)
    if platform is not None:
        return "npu" in (platform.device_type, platform.device_name)
    return str(torch._C._get_privateuse1_backend_name()) == "npu"


def soc_name() -> str | None:
    """Return the chip: "A2", "A3", "310P" or "A5"; None if there is no NPU or none of these.

    The answer is ASCEND_RUNTIME_SOC if that is set (ValueError if it is no such name), else what
    the vllm-ascend plugin was built for, else what the loaded torch_npu says, which may open the
    device. Once known, it is kept.
    """
    global _known_soc
    chosen = os.environ.get("ASCEND_RUNTIME_SOC")
    if chosen:
        if chosen not in SOCS:
            raise ValueError(f"ASCEND_RUNTIME_SOC={chosen}: it must be one of {', '.join(SOCS)}")
        return chosen
    if not is_npu():
        return None
    if _known_soc is None:
        _known_soc = _soc_of_plugin() or _soc_of_torch_npu()
    return _known_soc


def is_310p() -> bool:
    """Whether the chip is a 310P, which lacks some collectives and kernels."""
    return soc_name() == "310P"


def cores() -> tuple[int, int]:
    """Return how many AI cores (matrix) and vector cores the current device has.

    ASCEND_RUNTIME_CORES ("24,48") if that is set (ValueError if it is no pair of counts), else what
    the active driver of triton-ascend says, else, on a GPU, its multiprocessors twice. Without
    any, as in Triton's interpreter, one of each.
    """
    chosen = os.environ.get("ASCEND_RUNTIME_CORES")
    if chosen:
        try:
            ai, vector = (int(count) for count in chosen.split(","))
        except ValueError:
            ai = vector = 0
        if ai < 1 or vector < 1:
            raise ValueError(f"ASCEND_RUNTIME_CORES={chosen}: it must be two counts, as 24,48")
        return ai, vector
    return _cores_of_device()


@functools.cache
def _cores_of_device() -> tuple[int, int]:
    if torch.cuda.is_available():
        count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        return count, count
    try:
        driver = import_module("triton.runtime").driver.active
        properties = driver.utils.get_device_properties(driver.get_current_device())
        return int(properties["num_aicore"]), int(properties["num_vectorcore"])
    except Exception:  # no Triton, no driver, or not Ascend's
        return 1, 1


def _soc_of_plugin() -> str | None:
    try:
        built_for = import_module("vllm_ascend._build_info").__device_type__
    except Exception:  # absent, older, or broken: somebody else's module
        return None
    name = str(built_for).strip("_").upper()
    return name if name in SOCS else None


def _soc_of_torch_npu() -> str | None:
    torch_npu = sys.modules.get("torch_npu")
    try:
        number = int(torch_npu.npu.get_soc_version())  # type: ignore[union-attr]
    except Exception:  # not loaded, or no driver
        return None
    return next((s for s, (a, z) in _SOC_NUMBERS.items() if a <= number <= z), None)
