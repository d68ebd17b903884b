"""The fresh tree that the wheel is built from: vLLM's files, ours, and a pyproject.toml."""

from __future__ import annotations

import ast
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import InvalidVersion, Version

from rewriter import manifest as manifests
from rewriter.base import Base, commit_id
from rewriter.errors import RewriterError
from rewriter.metadata import BaseMetadata, read_metadata
from rewriter.rewrite import Rewritten
from rewriter.transform import Transform

#: Extra `npu`: versions that fit together on Ascend, never pulled in without being asked for.
NPU_EXTRA = ("torch==2.9.0", "torch-npu==2.9.0", "triton-ascend==3.2.0")
VERSION_FILE = "vllm/_version.py"
_COMPILED = (".so", ".pyd", ".dylib", ".dll")

_VERSION_MODULE = """\
# Written when the sources were edited; the distribution's version may have a local label.

__version__ = version = {version!r}
__version_tuple__ = version_tuple = {parts!r}

__commit_id__ = commit_id = {commit!r}
"""

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77.0.3,<81"]
build-backend = "setuptools.build_meta"

[project]
{project}

# Folders below the two packages count as data: then nothing decides what is a package and what is
# not, and every file goes in, dot-files and all.
[tool.setuptools]
include-package-data = false
packages = ["ascend_runtime", "vllm"]

[tool.setuptools.package-data]
ascend_runtime = ["**/*", "**/.*", "**/.*/**/*"]
vllm = ["**/*", "**/.*", "**/.*/**/*"]
"""

#: The wheel is packed anew afterwards, so deflating it here would be done twice.
_SETUP_CFG = "[bdist_wheel]\ncompression = stored\n"

_README_NOTE = """\
This is vLLM {base} with its sources edited for Huawei Ascend NPUs by vllm-ascend-rewriter
{project}. It is not published by the vLLM project. `python -m ascend_runtime` lists the edits and
checks the installation. vLLM's own description follows.

"""


@dataclass(frozen=True)
class Tree:
    """An assembled project: its folder, and each file that the wheel holds outside dist-info."""

    root: Path
    files: Mapping[str, bytes]


def wheel_version(base: str, project: str, *, label: bool = True) -> str:
    """Return the version of both wheels: vLLM's, with a label that names this project's version.

    A label that the base has already stays in front. Parts of it with "cpu" or "tpu" go, for vLLM
    picks its platform by looking for these in its version. `label=False` gives the public version.
    Raises RewriterError if either version is not one by PEP 440.
    """
    try:
        version, ours = Version(base), str(Version(project))
    except InvalidVersion as error:
        raise RewriterError(f"{error}; give the base's version with --base-version") from None
    if not label:
        return version.public
    parts = [*(version.local or "").split("."), "npu", *re.split(r"[^a-z0-9]+", ours)]
    kept = [part for part in parts if part and "cpu" not in part and "tpu" not in part]
    result = str(Version(f"{version.public}+{'.'.join(kept)}"))
    if "cpu" in result or "tpu" in result:
        raise RewriterError(f"version {result} would make vLLM take the wrong platform")
    return result


def assemble(
    *,
    base: Base,
    rewritten: Rewritten,
    transforms: Sequence[Transform],
    runtime: Path,
    root: Path,
    name: str,
    version: str,
    project_version: str,
) -> Tree:
    """Write the project into `root`, which must not exist yet, and return what it holds.

    Raises RewriterError for a base or runtime folder that cannot become a pure-Python wheel, and
    OSError if `root` cannot be written.
    """
    metadata = read_metadata(base)
    pristine = dict(_folder(base.root, "vllm"))
    files = dict(pristine)
    for path, data in rewritten.files.items():
        files[_inside_vllm(path)] = data
    files[VERSION_FILE] = _version_module(files.get(VERSION_FILE, b""), base)
    ours = dict(_folder(runtime.parent, runtime.name, skipped=("tests",)))
    files.update({f"ascend_runtime/{_below(path)}": data for path, data in ours.items()})
    files.pop(manifests.PATH, None)
    for needed in ("vllm/__init__.py", "ascend_runtime/__init__.py"):
        if needed not in files:
            raise RewriterError(f"there is no {needed} to pack")
    files[manifests.PATH] = manifests.manifest(
        base,
        rewritten.results,
        transforms,
        files,
        version=version,
        project_version=project_version,
    )
    beside = {
        "pyproject.toml": _pyproject(metadata, name, version, project_version).encode(),
        "setup.cfg": _SETUP_CFG.encode(),
        _readme_name(metadata): _readme(metadata, base, project_version),
        "LICENSE": metadata.licence,
        "NOTICE": manifests.notice(base, metadata, rewritten.results, transforms, project_version),
    }
    root.mkdir()
    kept = {path for path, data in pristine.items() if files[path] is data}
    _write(root, {**files, **beside}, base.root, kept)
    return Tree(root, dict(sorted(files.items())))


def _folder(root: Path, name: str, skipped: tuple[str, ...] = ()) -> Iterator[tuple[str, bytes]]:
    """Yield the files below `root/name` that belong in a wheel, by their path from `root`."""
    top = root / name
    if not top.is_dir():
        raise RewriterError(f"there is no folder {name}/ to pack")
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(entry for entry in folders if entry not in ("__pycache__", *skipped))
        place = Path(folder).relative_to(root).as_posix()
        for entry in folders:
            if os.path.islink(f"{folder}/{entry}"):  # noqa: PTH114
                raise RewriterError(
                    f"{place}/{entry} is a link to a folder, which no wheel can hold"
                )
        for entry in sorted(names):
            if not entry.endswith((".pyc", ".pyo")):
                yield f"{place}/{entry}", _content(root, f"{folder}/{entry}", f"{place}/{entry}")


def _content(root: Path, path: str, shown: str) -> bytes:
    """Read one file. Plain strings: with Path, 2,000 of them cost half a second more."""
    if path.endswith(_COMPILED):
        raise RewriterError(f"{shown} is compiled: the result would not be pure Python")
    if os.path.islink(path) and not Path(path).resolve().is_relative_to(root.resolve()):  # noqa: PTH114
        raise RewriterError(f"{shown} is a link out of the source tree")
    if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
        raise RewriterError(f"{shown} is not a plain file")
    with open(path, "rb") as file:  # noqa: PTH123
        return file.read()


def _below(path: str) -> str:
    return path.partition("/")[2]


def _inside_vllm(path: str) -> str:
    parts = PurePosixPath(path).parts
    if parts[:1] != ("vllm",) or ".." in parts or len(parts) < 2:
        raise RewriterError(f"{path!r} is not a path inside vllm/")
    return path


def _version_module(source: bytes, base: Base) -> bytes:
    """Return `_version.py` with exactly the public version: the base's own if it says that.

    A label in it would break whoever compares `vllm.__version__` with a release.
    """
    version = Version(base.version)
    if _assigned(source, "__version__") == version.public:
        return source
    parts: list[int | str] = list(version.release)
    parts += [part for part in version.public[len(version.base_version) :].split(".") if part]
    text = _VERSION_MODULE.format(
        version=version.public, parts=tuple(parts), commit=commit_id(base.commit)
    )
    return text.encode()


def _assigned(source: bytes, name: str) -> object:
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return None
    for statement in body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if name in names:
                return statement.value.value
    return None


def _pyproject(metadata: BaseMetadata, name: str, version: str, project_version: str) -> str:
    fields: dict[str, object] = {
        "name": name,
        "version": version,
        "description": f"{metadata.summary} (edited for Ascend NPUs)".strip(),
        "license": "Apache-2.0",
        "license-files": ["LICENSE", "NOTICE"],
        "readme": _readme_name(metadata),
        "requires-python": metadata.requires_python,
        "classifiers": metadata.classifiers,
        "authors": metadata.authors,
        "urls": metadata.urls,
        "dependencies": metadata.requirements,
        "optional-dependencies": {**metadata.extras, "npu": NPU_EXTRA},
        "scripts": metadata.scripts,
        "entry-points": metadata.entry_points,
    }
    lines = [f"{key} = {_toml(value)}" for key, value in fields.items() if value]
    return _PYPROJECT.format(project="\n".join(lines))


def _toml(value: object) -> str:
    """Return strings, lists and tables as TOML on one line."""
    match value:
        case str():
            # JSON's strings are TOML's, but for one control character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case Mapping():
            items = (f"{_toml(str(key))} = {_toml(item)}" for key, item in value.items())
            return "{" + ", ".join(items) + "}"
        case list() | tuple():
            return "[" + ", ".join(_toml(item) for item in value) + "]"
    raise RewriterError(f"the base's metadata has {value!r} where text was expected")


def _readme_name(metadata: BaseMetadata) -> str:
    return f"README{metadata.readme[1]}"


def _readme(metadata: BaseMetadata, base: Base, project_version: str) -> bytes:
    note = _README_NOTE.format(base=base.version, project=project_version)
    return (note + metadata.readme[0]).encode()


def _write(root: Path, files: Mapping[str, bytes], pristine: Path, kept: Set[str]) -> None:
    """Write the files; those that are kept as they are in `pristine` become links where they can.

    The backend only reads them, and making a file costs several times more than a link to one.
    """
    for folder in sorted({str(PurePosixPath(path).parent) for path in files}):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for path, data in files.items():
        if path in kept and _linked(f"{pristine}/{path}", f"{root}/{path}"):
            continue
        with open(f"{root}/{path}", "xb") as file:  # noqa: PTH123
            file.write(data)


def _linked(source: str, target: str) -> bool:
    try:
        os.link(os.path.realpath(source), target)
    except OSError:  # another disk, a file system without links, somebody else's file
        return False
    return True
