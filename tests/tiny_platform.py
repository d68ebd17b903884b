"""The smallest platform plugin that vLLM's commands start with: an out-of-tree CPU."""

from __future__ import annotations

from pathlib import Path

_MODULE = '''\
"""A platform for tests: torch's CPU, as an out-of-tree plugin would present itself."""

from vllm.platforms.interface import Platform, PlatformEnum


class TinyPlatform(Platform):
    _enum = PlatformEnum.OOT
    device_name = "tiny"
    device_type = "cpu"
    dispatch_key = "CPU"

    @classmethod
    def get_device_name(cls, device_id=0):
        return "tiny"

    @classmethod
    def check_and_update_config(cls, vllm_config):
        pass


def register():
    return "tiny_platform.TinyPlatform"
'''


def install(site: Path) -> None:
    """Put the plugin, with its entry point, into a folder of importable packages."""
    site.mkdir(parents=True, exist_ok=True)
    (site / "tiny_platform.py").write_text(_MODULE)
    info = site / "tiny_platform-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-platform\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[vllm.platform_plugins]\ntiny = tiny_platform:register\n"
    )
