"""An out-of-tree vLLM platform that generates on the host with torch alone.

vLLM's own CPU platform needs its C++ extension; this one needs neither that nor Triton, so the
pure-Python wheel runs whole models: dense and mixture-of-experts decoders, sliding windows, chunked
prefill, prefix caching, tensor parallelism over gloo. Not supported: MLA and sparse attention,
ALiBi, soft caps and sinks, quantized weights, torch.compile, CUDA graphs.

Its device is "cpu", or with TORCH_PLATFORM_DEVICE=npu the "npu" on host memory of `npu_device`.
vLLM finds it by the entry point that `install` writes.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_HERE = Path(__file__).parent


def register() -> str:
    """Return the platform's class; vLLM calls this through the entry point."""
    if os.environ.get("TORCH_PLATFORM_DEVICE") == "npu":
        return "torch_platform.npu.NpuPlatform"
    return "torch_platform.platform.TorchPlatform"


def install(site: Path) -> None:
    """Put the package, its entry point and `npu_device` into a folder of importable packages."""
    for source in (_HERE, _HERE.with_name("npu_device")):
        shutil.copytree(
            source,
            site / source.name,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    info = site / "torch_platform-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\ntorch_platform = torch_platform:register\n"
    )
