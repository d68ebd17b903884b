"""Who owns the installed `vllm/`: the cheap look that `import ascend_runtime` takes.

Two distributions that hold `vllm/` overwrite each other without a word from pip, and removing one
removes the other's files.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from ascend_runtime import manifest as manifests

#: Set it to anything to look at nothing on import.
SWITCH = "ASCEND_RUNTIME_NO_OWNER_CHECK"
_NAMES = ("vllm-", "vllm_ascend_patched-")
#: Edited files compared on import; the doctor compares all.
_SAMPLE = 3


@dataclass(frozen=True)
class Owner:
    """An installed distribution that lists `vllm/__init__.py` as its own."""

    name: str
    version: str


def owners(site: Path) -> list[Owner]:
    """Return the distributions in one site folder that own its `vllm/`, looking at no others."""
    found = []
    for folder in sorted(site.glob("vllm*.dist-info")):
        name, _, version = folder.name[: -len(".dist-info")].partition("-")
        if folder.name.startswith(_NAMES) and lists(folder / "RECORD", "vllm/__init__.py"):
            found.append(Owner(name.replace("_", "-"), version))
    return found


def lists(record: Path, path: str) -> bool:
    """Whether a RECORD file names this path."""
    try:
        return f"\n{path}," in "\n" + record.read_text("utf-8", "replace")
    except OSError:
        return False


def reinstall(version: str, *, renamed: bool) -> str:
    """Return the command that leaves one owner of `vllm/`: ours, in the form that was there.

    Both names go first, whoever is installed: what pip uninstalls later takes shared files along.
    """
    name = "vllm_ascend_patched" if renamed else "vllm"
    wheel = f"{name}-{version}-py3-none-any.whl"
    return f"pip uninstall -y vllm vllm-ascend-patched && pip install --no-deps {wheel}"


def problem(site: Path) -> str:
    """Return what is wrong with the installed `vllm/` and the cure, in one line, or ""."""
    manifest = manifests.load(site)
    found = owners(site)
    renamed = any(owner.name == "vllm-ascend-patched" for owner in found)
    cure = reinstall(manifest.version, renamed=renamed)
    if len(found) > 1:
        who = " and ".join(f"{owner.name} {owner.version}" for owner in found)
        return f"vllm/ belongs to {who}, which overwrite each other; cure: {cure}"
    for path in ["vllm/_version.py", *manifest.edited[:_SAMPLE]]:
        if path in manifest.files and manifests.differs(site, path, manifest.files[path]):
            return f"{path} is not the file of the patched vLLM; cure: {cure}"
    return ""


def check_owner(site: Path | None = None) -> None:
    """Warn in one line if the installed `vllm/` is not ours alone. Silent in a source checkout.

    It takes milliseconds: four files are hashed. It raises nothing, unless warnings are errors.
    """
    if os.environ.get(SWITCH):
        return
    try:
        line = problem(site or manifests.site())
    except (manifests.ManifestError, OSError, KeyError):
        return
    if line:
        os.environ[SWITCH] = "1"  # the workers started from here need not say it again
        # By warn(), Python would print the line of the source, too; no file has a line 0.
        warnings.warn_explicit(line, RuntimeWarning, __file__, 0, module="ascend_runtime")
