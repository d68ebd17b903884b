"""Checks of an installation that go wrong silently: each returns what it found and what to do.

They read the metadata of installed distributions and look for files. None of them imports torch,
torch_npu, triton or vllm, and none touches a device.
"""

from __future__ import annotations

import base64
import ctypes.util
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ascend_runtime import manifest as manifests
from ascend_runtime.owners import reinstall

_CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
_OPTION = "--force-reinstall --no-deps"


@dataclass(frozen=True)
class Finding:
    """Something wrong: the check that found it, what it is, and what to do about it."""

    check: str
    problem: str
    cure: str


@dataclass(frozen=True)
class Installed:
    """An installed distribution: its metadata and the text of its RECORD."""

    name: str
    version: str
    root: Path
    requires: tuple[str, ...]
    record: str

    def owns(self, path: str) -> bool:
        """Whether the distribution lists this path among its files."""
        return f"\n{path}," in "\n" + self.record

    def __str__(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}"


def installed(path: list[str] | None = None) -> list[Installed]:
    """Return the distributions on `path` (by default sys.path), each once, sorted by name."""
    found: dict[tuple[str, str, Path], Installed] = {}
    for distribution in importlib.metadata.distributions(path=sys.path if path is None else path):
        name = distribution.metadata["Name"]
        if not name:  # a dist-info without METADATA, left by an interrupted uninstall
            continue
        root = Path(str(distribution.locate_file("")))
        found.setdefault(
            (_canonical(name), distribution.version, root),
            Installed(
                name=_canonical(name),
                version=distribution.version,
                root=root,
                requires=tuple(distribution.requires or ()),
                record=distribution.read_text("RECORD") or "",
            ),
        )
    return [found[key] for key in sorted(found)]


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _named(name: str, distributions: Iterable[Installed]) -> Installed | None:
    return next((one for one in distributions if one.name == name), None)


def _cure(manifest: manifests.Manifest, distributions: Iterable[Installed]) -> str:
    renamed = _named("vllm-ascend-patched", distributions) is not None
    return reinstall(manifest.version, renamed=renamed)


def two_owners(manifest: manifests.Manifest, distributions: list[Installed]) -> list[Finding]:
    """Two distributions hold `vllm/`: whichever came last has overwritten the other's files."""
    owners = [one for one in distributions if one.owns("vllm/__init__.py")]
    if len(owners) < 2:
        return []
    who = " and ".join(f"{one} (in {one.root})" for one in owners)
    return [Finding("two-owners", f"vllm/ belongs to {who}", _cure(manifest, distributions))]


def files_gone(manifest: manifests.Manifest, distributions: list[Installed]) -> list[Finding]:
    """A distribution lists `vllm/`, but the files went away with another that shared them."""
    return [
        Finding(
            "files-gone",
            f"{one} is listed as installed, but its vllm/__init__.py is gone",
            _cure(manifest, distributions),
        )
        for one in distributions
        if one.owns("vllm/__init__.py") and not (one.root / "vllm/__init__.py").is_file()
    ]


def files_differ(
    manifest: manifests.Manifest, distributions: list[Installed], site: Path
) -> list[Finding]:
    """The files are not those of the manifest: another vLLM came over them, or an edit by hand."""
    verified = manifests.verify(manifest, site)
    if verified.ok:
        return []
    kinds = (
        ("missing", verified.missing),
        ("changed", verified.changed),
        ("not from this wheel", verified.extra),
    )
    parts = [f"{len(paths)} {kind} ({_some(paths)})" for kind, paths in kinds if paths]
    problem = f"of {verified.checked} files, {'; '.join(parts)}"
    cure = _cure(manifest, distributions)
    if verified.extra:  # pip leaves what it has not listed
        cure = f"{cure}; between the two remove what is left of {site / 'vllm'}"
    return [Finding("files-differ", problem, cure)]


def _some(paths: list[str]) -> str:
    return ", ".join(paths[:3]) + (" ..." if len(paths) > 3 else "")


def manifest_changed(
    manifest: manifests.Manifest, distributions: list[Installed], site: Path
) -> list[Finding]:
    """The manifest itself is not the one that the installer recorded."""
    path = f"ascend_runtime/{manifests.NAME}"
    for one in distributions:
        match = re.search(rf"^{re.escape(path)},sha256=([\w-]+),", one.record, re.MULTILINE)
        if match and one.root.resolve() == site and manifests.differs(site, path, _hex(match[1])):
            problem = f"{path} is not the one that {one} holds"
            return [Finding("manifest-changed", problem, _cure(manifest, distributions))]
    return []


def _hex(digest: str) -> str:
    """Return a hash from RECORD as the manifest writes it."""
    return base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()


def shadowed(site: Path) -> list[Finding]:
    """`import vllm` finds a vLLM elsewhere on sys.path, not the one beside this package."""
    try:
        spec = importlib.util.find_spec("vllm")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.origin or Path(spec.origin).resolve() == site / "vllm/__init__.py":
        return []  # a vllm/ that is gone is for files_gone and files_differ
    where = Path(spec.origin).parent
    return [
        Finding(
            "shadowed",
            f"`import vllm` finds {where}, not the edited vLLM in {site}",
            "start from another folder, or remove that vLLM or its entry in PYTHONPATH",
        )
    ]


def two_tritons(distributions: list[Installed]) -> list[Finding]:
    """Stock triton beside triton-ascend: both own `triton/`, and xgrammar pulls stock triton in."""
    stock, ascend = _named("triton", distributions), _named("triton-ascend", distributions)
    if stock is None or ascend is None:
        return []
    cure = f"pip uninstall -y triton && pip install {_OPTION} {ascend.name}=={ascend.version}"
    return [Finding("two-tritons", f"{stock} and {ascend} share the folder triton/", cure)]


def no_cann(distributions: list[Installed]) -> list[Finding]:
    """torch-npu without CANN: `import torch_npu` fails, and vLLM then finds no platform."""
    torch_npu = _named("torch-npu", distributions)
    if torch_npu is None or _has_cann():
        return []
    cure = "install CANN and source its set_env.sh in the shell that starts vLLM"
    return [Finding("no-cann", f"{torch_npu} is installed, but CANN is not to be found", cure)]


def _has_cann() -> bool:
    if any(os.environ.get(variable) for variable in _CANN_VARIABLES):
        return True
    folders = filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep))
    if any(Path(folder, "libascendcl.so").exists() for folder in folders):
        return True
    return ctypes.util.find_library("ascendcl") is not None


def other_torch(distributions: list[Installed]) -> list[Finding]:
    """A torch that torch-npu was not built for: its library then fails to load."""
    torch, torch_npu = _named("torch", distributions), _named("torch-npu", distributions)
    if torch_npu is None:
        return []
    wanted = _wanted_torch(torch_npu)
    if torch is not None and _public(torch.version) == _public(wanted):
        return []
    there = f"{torch} is" if torch else "no torch is"
    problem = f"{torch_npu} wants torch=={wanted}, but {there} installed"
    return [Finding("other-torch", problem, f"pip install --no-deps torch=={wanted}")]


def _wanted_torch(torch_npu: Installed) -> str:
    """Return the version of torch that torch-npu requires; its own release, if it does not say."""
    for requirement in torch_npu.requires:
        match = re.match(r"torch\s*\(?\s*===?\s*([\w.!]+(?:\+[\w.]+)?)\s*(?:[;)]|$)", requirement)
        if match:
            return match[1]
    return ".".join(_public(torch_npu.version).split(".")[:3])


def _public(version: str) -> str:
    return version.partition("+")[0]


def examine(
    manifest: manifests.Manifest, site: Path, path: list[str] | None = None
) -> list[Finding]:
    """Run every check on the wheel in `site` and the distributions on `path`."""
    distributions = installed(path)
    checks: list[Callable[[], list[Finding]]] = [
        lambda: two_owners(manifest, distributions),
        lambda: files_gone(manifest, distributions),
        lambda: files_differ(manifest, distributions, site),
        lambda: manifest_changed(manifest, distributions, site),
        lambda: shadowed(site),
        lambda: two_tritons(distributions),
        lambda: no_cann(distributions),
        lambda: other_torch(distributions),
    ]
    return [finding for check in checks for finding in check()]
