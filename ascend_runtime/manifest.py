"""The manifest of the installed wheel: what was edited, and whether the files are still those.

The wheel holds it beside this module, so that it is found whatever the distribution is called. A
source checkout has none.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: The newest layout of manifest.json that this module reads.
SCHEMA = 1
NAME = "manifest.json"


class ManifestError(Exception):
    """There is no manifest, or it cannot be read; the message is one line."""


@dataclass(frozen=True)
class Manifest:
    """manifest.json as data. `files` maps each path of the wheel to its sha256.

    `project` is the version of the project that made the edits, `version` that of the wheel.
    """

    project: str
    version: str
    base: dict[str, Any]
    transforms: list[dict[str, Any]]
    files: dict[str, str]

    @property
    def edited(self) -> list[str]:
        """The files of vLLM that transforms have changed, sorted."""
        return sorted({path for transform in self.transforms for path in transform["files"]})


@dataclass(frozen=True)
class Verified:
    """How the files on disk differ from the manifest; all lists are sorted paths."""

    checked: int
    missing: list[str]
    changed: list[str]
    extra: list[str]

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (self.missing or self.changed or self.extra)


def site() -> Path:
    """Return the folder that holds `ascend_runtime/`, and with it the installed `vllm/`."""
    return Path(__file__).resolve().parent.parent


def load(root: Path | None = None) -> Manifest:
    """Read the manifest below `root`, by default the one beside this module.

    Raises ManifestError if there is none, or if it is damaged or too new.
    """
    path = (root or site()) / "ascend_runtime" / NAME
    try:
        data = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ManifestError("there is no manifest: this is a source checkout") from None
    except (OSError, ValueError) as error:
        raise ManifestError(f"the manifest cannot be read: {type(error).__name__}") from None
    try:
        if data["schema"] > SCHEMA:
            raise ManifestError(f"the manifest has schema {data['schema']}, newer than {SCHEMA}")
        manifest = Manifest(
            project=data["project"],
            version=data["version"],
            base=data["base"],
            transforms=data["transforms"],
            files=data["files"],
        )
        manifest.edited  # noqa: B018  (a damaged list of transforms shows here)
    except (KeyError, TypeError) as error:
        raise ManifestError(f"the manifest is damaged: {error}") from None
    return manifest


def differs(root: Path, path: str, sha256: str) -> bool:
    """Whether a file is missing, unreadable or not the one with this hash."""
    try:
        return hashlib.sha256((root / path).read_bytes()).hexdigest() != sha256
    except OSError:
        return True


def verify(manifest: Manifest, root: Path | None = None) -> Verified:
    """Hash every file of the manifest below `root`, and look for files that it does not know.

    The byte code that Python writes beside the sources is no file of the wheel.
    """
    root = root or site()
    missing = [path for path in manifest.files if not (root / path).is_file()]
    gone = set(missing)
    changed = [
        path
        for path, sha256 in manifest.files.items()
        if path not in gone and differs(root, path, sha256)
    ]
    known = {*manifest.files, f"ascend_runtime/{NAME}"}
    extra = [path for path in _present(root) if path not in known]
    return Verified(len(manifest.files), sorted(missing), sorted(changed), sorted(extra))


def _present(root: Path) -> Iterator[str]:
    for package in ("vllm", "ascend_runtime"):
        for folder, folders, names in os.walk(root / package):
            folders[:] = [name for name in folders if name != "__pycache__"]
            place = Path(folder).relative_to(root).as_posix()
            yield from (f"{place}/{name}" for name in names if not name.endswith(".pyc"))
