"""What vLLM says of itself: requirements, extras, entry points, licence; read, never executed."""

from __future__ import annotations

import ast
import configparser
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.requirements import InvalidRequirement, Requirement

from rewriter.base import Base
from rewriter.errors import RewriterError

_COMMENT = re.compile(r"(?:^|\s)#.*$")
#: Requirements that a wheel built for CUDA lists and an NPU must not get.
_CUDA_ONLY = re.compile(r"(triton|torch|torchvision|torchaudio|xformers|flashinfer-.*|nvidia-.*)\Z")
_LICENCES = ("LICENSE", "LICENSE.txt", "LICENSE.md")
_README_TYPES = {"text/markdown": ".md", "text/x-rst": ".rst", "text/plain": ".txt"}


@dataclass(frozen=True)
class BaseMetadata:
    """The metadata that our wheels take over from vLLM.

    `readme` is the text and the suffix that tells its markup; `notice` is vLLM's own NOTICE, if it
    has one, which the Apache licence wants passed on.
    """

    summary: str
    readme: tuple[str, str]
    requires_python: str
    classifiers: tuple[str, ...]
    authors: tuple[Mapping[str, str], ...]
    urls: Mapping[str, str]
    requirements: tuple[str, ...]
    extras: Mapping[str, tuple[str, ...]]
    scripts: Mapping[str, str]
    entry_points: Mapping[str, Mapping[str, str]]
    licence: bytes
    notice: bytes


def read_metadata(base: Base) -> BaseMetadata:
    """Read the metadata of a base: `dist-info` for a wheel, else `pyproject.toml` and its helpers.

    Raises RewriterError where something that must be there is missing or not readable as data.
    """
    try:
        return _from_wheel(base.root) if base.origin == "wheel" else _from_tree(base.root)
    except UnicodeDecodeError as error:
        raise RewriterError(f"the base's metadata is not UTF-8: {error.reason}") from None


def requirements_of(text: str, where: str) -> tuple[str, ...]:
    """Return the requirements in a pip requirements file, without comments and options.

    Markers and version bounds stay. Raises RewriterError for a line that is neither an option nor a
    requirement, and for one that includes another file, which would be lost silently.
    """
    found = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        line = _COMMENT.sub("", line).strip()
        if re.match(r"(-r|-c|--requirement|--constraint)\b", line):
            raise RewriterError(f"{where}:{number}: {line}: included files are not followed")
        line = re.split(r"\s--", line, maxsplit=1)[0] if not line.startswith("-") else ""
        if line:
            found.append(_checked(line, f"{where}:{number}"))
    return tuple(found)


def extras_of(source: str, where: str = "setup.py") -> dict[str, tuple[str, ...]]:
    """Return the literal `extras_require` of a `setup(...)` call, found with ast.

    Raises RewriterError if there is no such call or keyword, or if it is anything but a literal.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise RewriterError(f"{where}:{error.lineno}: not Python: {error.msg}") from None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _called(node) == "setup":
            for keyword in node.keywords:
                if keyword.arg == "extras_require":
                    return _literal_extras(keyword.value, where)
    raise RewriterError(f"{where}: no setup(extras_require=...) found; vLLM's extras would be lost")


def _called(node: ast.Call) -> str:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _literal_extras(node: ast.expr, where: str) -> dict[str, tuple[str, ...]]:
    place = f"{where}:{node.lineno}"
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise RewriterError(f"{place}: extras_require is not a literal, cannot be read") from None
    if not isinstance(value, dict):
        raise RewriterError(f"{place}: extras_require is not a dict")
    return _extras(value, place)


def _extras(value: Mapping[Any, Any], place: str) -> dict[str, tuple[str, ...]]:
    extras = {}
    for name, requirements in value.items():
        if not isinstance(name, str) or not isinstance(requirements, list | tuple):
            raise RewriterError(f"{place}: extra {name!r} is not a list of requirements")
        extras[name] = tuple(_checked(requirement, place) for requirement in requirements)
    return extras


def _checked(requirement: object, place: str) -> str:
    try:
        if isinstance(requirement, str):
            Requirement(requirement)
            return requirement
    except InvalidRequirement:
        pass
    raise RewriterError(f"{place}: {requirement!r} is not a requirement")


#: What `[project]` may hold of what is read here; the table's own packers check no type.
_FIELDS: dict[str, tuple[str, Callable[[object], bool]]] = {
    "name": ("a string", lambda v: isinstance(v, str)),
    "description": ("a string", lambda v: isinstance(v, str)),
    "readme": ("a string or a table of strings", lambda v: isinstance(v, str) or _is_texts(v)),
    "requires-python": ("a string", lambda v: isinstance(v, str)),
    "classifiers": ("a list of strings", lambda v: _is_list(v)),
    "authors": (
        "a list of tables of strings",
        lambda v: isinstance(v, list) and all(map(_is_texts, v)),
    ),
    "urls": ("a table of strings", lambda v: _is_texts(v)),
    "dynamic": ("a list of strings", lambda v: _is_list(v)),
    "dependencies": ("a list of strings", lambda v: _is_list(v)),
    "optional-dependencies": (
        "a table of lists of strings",
        lambda v: isinstance(v, dict) and all(map(_is_list, v.values())),
    ),
    "scripts": ("a table of strings", lambda v: _is_texts(v)),
    "entry-points": (
        "a table of tables of strings",
        lambda v: isinstance(v, dict) and all(map(_is_texts, v.values())),
    ),
}


def _is_list(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_texts(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _check_types(project: Mapping[str, object]) -> None:
    for key, (kind, fits) in _FIELDS.items():
        if key in project and not fits(project[key]):
            raise RewriterError(
                f"pyproject.toml of the base: project.{key} is not {kind}; mend it, or give a "
                "genuine release"
            )


def _some(requirements: tuple[str, ...], where: str) -> tuple[str, ...]:
    """Refuse a list without requirements: vLLM has dozens, and without them it runs nowhere."""
    if not requirements:
        raise RewriterError(f"{where} of the base names no requirement; get vLLM's own back")
    return requirements


def _from_tree(root: Path) -> BaseMetadata:
    try:
        project = tomllib.loads(_text(root, "pyproject.toml")).get("project", {})
    except tomllib.TOMLDecodeError as error:
        raise RewriterError(f"pyproject.toml of the base: {error}") from None
    if not isinstance(project, dict):
        raise RewriterError("pyproject.toml of the base has no [project] table")
    _check_types(project)
    dynamic = project.get("dynamic", [])
    if "dependencies" in dynamic:
        path = "requirements/common.txt"
        text = _text(root, path)
    else:
        path, text = "pyproject.toml", "\n".join(project.get("dependencies", []))
    requirements = _some(requirements_of(text, path), path)
    if "optional-dependencies" in dynamic:
        extras = extras_of(_text(root, "setup.py"))
    else:
        extras = _extras(project.get("optional-dependencies", {}), "pyproject.toml")
    return BaseMetadata(
        summary=project.get("description", ""),
        readme=_readme(root, project.get("readme")),
        requires_python=project.get("requires-python", ""),
        classifiers=tuple(project.get("classifiers", ())),
        authors=tuple(project.get("authors", ())),
        urls=project.get("urls", {}),
        requirements=requirements,
        extras=extras,
        scripts=project.get("scripts", {}),
        entry_points=project.get("entry-points", {}),
        licence=_licence([root]),
        notice=_bytes(root / "NOTICE"),
    )


def _text(root: Path, path: str) -> str:
    try:
        return (root / path).read_text("utf-8")
    except OSError:
        raise RewriterError(f"the base has no readable {path}; is it a vLLM source tree?") from None


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def _readme(root: Path, declared: object) -> tuple[str, str]:
    name = declared.get("file") if isinstance(declared, dict) else declared
    if not isinstance(name, str):
        return "", ".md"
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise RewriterError(f"pyproject.toml of the base: readme {name!r} is outside the tree")
    return _text(root, name), path.suffix.lower()


def _licence(folders: Sequence[Path]) -> bytes:
    for folder in folders:
        for name in _LICENCES:
            if text := _bytes(folder / name):
                return text
    raise RewriterError("the base has no LICENSE file; its licence must be passed on")


def _from_wheel(root: Path) -> BaseMetadata:
    found = sorted(root.glob("*.dist-info"))
    if len(found) != 1:
        raise RewriterError(f"the base wheel has {len(found)} dist-info folders instead of one")
    info = found[0]
    meta = Metadata.from_email(_text(root, f"{info.name}/METADATA").encode(), validate=False)
    requires = [r for r in meta.requires_dist or () if not _CUDA_ONLY.match(r.name.lower())]
    _some(tuple(map(str, requires)), "METADATA")
    extras: dict[str, tuple[str, ...]] = dict.fromkeys(meta.provides_extra or (), ())
    requirements = []
    for requirement in requires:
        text, extra = _without_extra(requirement)
        if extra is None:
            requirements.append(text)
        else:
            extras[extra] = (*extras.get(extra, ()), text)
    points = _entry_points(info / "entry_points.txt")
    folders = [info / "licenses", info / "license_files", info]
    kind = (meta.description_content_type or "text/markdown").partition(";")[0].strip().lower()
    return BaseMetadata(
        summary=meta.summary or "",
        readme=(meta.description or "", _README_TYPES.get(kind, ".md")),
        requires_python=str(meta.requires_python or ""),
        classifiers=tuple(meta.classifiers or ()),
        authors=({"name": meta.author},) if meta.author else (),
        urls=meta.project_urls or {},
        requirements=tuple(requirements),
        extras=extras,
        scripts=points.pop("console_scripts", {}),
        entry_points=points,
        licence=_licence(folders),
        notice=next(filter(None, (_bytes(folder / "NOTICE") for folder in folders)), b""),
    )


def _without_extra(requirement: Requirement) -> tuple[str, str | None]:
    """Split `x; python_version > "3.11" and extra == "y"` into the rest and "y"."""
    marker = str(requirement.marker or "")
    if "extra" not in marker:
        return str(requirement), None
    match = re.fullmatch(r'(?:(.*) and )?extra == "([^"]+)"', marker)
    rest = match and (match[1] or "")
    if match is None or rest is None or "extra" in rest:
        raise RewriterError(
            f"the base wheel's requirement {str(requirement)!r} is too odd to split"
        )
    if " or " in rest and not (rest.startswith("(") and rest.endswith(")")):
        raise RewriterError(
            f"the base wheel's requirement {str(requirement)!r} is too odd to split"
        )
    bare = str(requirement).partition(";")[0].strip()
    return (f"{bare}; {rest}" if rest else bare), match[2]


def _entry_points(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(_bytes(path).decode("utf-8"))
    except configparser.Error as error:
        first = str(error).partition("\n")[0]
        raise RewriterError(f"entry_points.txt of the base wheel: {first}") from None
    return {section: dict(parser.items(section)) for section in parser.sections()}
