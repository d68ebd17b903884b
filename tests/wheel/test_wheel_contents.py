"""What is in the wheels of the real vLLM: files, metadata, and what other people's tools say."""

from __future__ import annotations

import ast
import email
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import zipfile
from email.message import Message
from pathlib import Path

import pytest
from installer.sources import WheelFile
from packaging.requirements import Requirement

FORMS = ("vllm-ascend-patched", "vllm")
VERSION = "0.18.0+npu.0.1.0"


def info(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if n.endswith(f".dist-info/{name}")]
        return archive.read(path)


def metadata(wheel: Path) -> Message:
    return email.message_from_string(info(wheel, "METADATA").decode())


def payload(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {n: archive.read(n) for n in archive.namelist() if ".dist-info/" not in n}


def test_names(wheels):
    assert [path.name for path in wheels] == [
        f"vllm_ascend_patched-{VERSION}-py3-none-any.whl",
        f"vllm-{VERSION}-py3-none-any.whl",
    ]
    assert sorted(path.name for path in wheels.renamed.parent.iterdir()) == sorted(
        path.name for path in wheels
    )


def test_every_file_of_the_sdist_and_ours_and_nothing_else(wheels):
    root = wheels.base.root
    expected = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in (root / "vllm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert len(expected) == 1975
    expected.update(wheels.rewritten.files)
    for wheel in wheels:
        held = payload(wheel)
        assert {path: held[path] for path in held if path.startswith("vllm/")} == expected
        ours = {path for path in held if path.startswith("ascend_runtime/")}
        assert {path.partition("/")[0] for path in held} == {"vllm", "ascend_runtime"}
        assert "ascend_runtime/manifest.json" in ours
        assert not any("__pycache__" in path or "/tests/" in path for path in ours)


def test_version_module_has_the_plain_version(wheels):
    for wheel in wheels:
        names: dict[str, object] = {}
        exec(payload(wheel)["vllm/_version.py"], names)
        assert names["__version__"] == "0.18.0"
        assert names["__version_tuple__"] == (0, 18, 0)


def test_requirements_are_those_of_common_txt(wheels):
    text = (wheels.base.root / "requirements/common.txt").read_text()
    lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in text.splitlines()]
    wanted = {str(Requirement(line)) for line in lines if line}
    for wheel in wheels:
        requires = [Requirement(r) for r in metadata(wheel).get_all("Requires-Dist")]
        got = {str(r) for r in requires if "extra ==" not in str(r.marker)}
        assert got == wanted
        assert not {r.name for r in requires if "extra ==" not in str(r.marker)} & {
            "torch",
            "triton",
        }


def test_extras_are_those_of_setup_py_and_npu(wheels):
    wanted = _extras_of_setup(wheels.base.root / "setup.py")
    wanted["npu"] = ["torch==2.9.0", "torch-npu==2.9.0", "triton-ascend==3.2.0"]
    for wheel in wheels:
        head = metadata(wheel)
        assert set(head.get_all("Provides-Extra")) == set(wanted)
        for extra, requirements in wanted.items():
            got = [r for r in head.get_all("Requires-Dist") if r.endswith(f'extra == "{extra}"')]
            assert {str(Requirement(r.partition(";")[0])) for r in got} == {
                str(Requirement(r)) for r in requirements
            }


def _extras_of_setup(path: Path) -> dict[str, list[str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "extras_require":
            return ast.literal_eval(node.value)
    raise AssertionError("no extras_require")


def test_vllms_own_reader_of_extras_understands_them(wheels, monkeypatch):
    source = (wheels.base.root / "vllm/utils/import_utils.py").read_text()
    (function,) = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "get_vllm_optional_dependencies"
    ]
    names: dict[str, object] = {"importlib": importlib, "re": re, "cache": lambda f: f}
    exec(ast.unparse(function), names)
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: metadata(wheels.drop_in))
    extras = names["get_vllm_optional_dependencies"]()
    assert len(extras) == 14
    assert extras["npu"] == ["torch", "torch-npu", "triton-ascend"]
    assert "pandas" in extras["bench"] and extras["video"] == []


def test_the_rest_of_the_metadata(wheels):
    for wheel, name in zip(wheels, FORMS, strict=True):
        head = metadata(wheel)
        assert (head["Name"], head["Version"]) == (name, VERSION)
        assert head["License-Expression"] == "Apache-2.0"
        assert head["Requires-Python"] == "<3.14,>=3.10"
        assert head["Author"] == "vLLM Team"
        assert "Programming Language :: Python :: 3.13" in head.get_all("Classifier")
        assert head.get_all("License-File") == ["LICENSE", "NOTICE"]
        assert info(wheel, "licenses/LICENSE") == (wheels.base.root / "LICENSE").read_bytes()
        assert b"one_edit\n    changed vllm/logger.py\n" in info(wheel, "licenses/NOTICE")
        points = info(wheel, "entry_points.txt").decode()
        assert "[console_scripts]\nvllm = vllm.entrypoints.cli.main:main" in points
        assert "[vllm.general_plugins]\nlora_filesystem_resolver = vllm.plugins" in points
        assert re.search(rb"(?m)^Generator: vllm-ascend-rewriter 0\.1\.0$", info(wheel, "WHEEL"))


def test_the_manifest_names_every_file(wheels):
    held = payload(wheels.renamed)
    manifest = json.loads(held.pop("ascend_runtime/manifest.json"))
    assert manifest["files"] == {p: hashlib.sha256(data).hexdigest() for p, data in held.items()}
    assert manifest["base"]["sha256"] == wheels.base.sha256
    assert [(t["id"], t["outcome"]) for t in manifest["transforms"]] == [
        ("not_here", "not-applicable"),
        ("one_edit", "applied"),
    ]
    assert payload(wheels.drop_in) == payload(wheels.renamed)


def test_the_sbom_is_cyclonedx(wheels):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    for wheel, name in zip(wheels, FORMS, strict=True):
        text = info(wheel, "sboms/vllm-ascend-rewriter.cdx.json").decode()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
        bom = json.loads(text)
        assert bom["metadata"]["component"]["name"] == name
        vllm = next(c for c in bom["components"] if c["name"] == "vllm")
        assert vllm["version"] == "0.18.0"
        assert vllm["hashes"] == [{"alg": "SHA-256", "content": wheels.base.sha256}]
        assert vllm["licenses"] == [{"license": {"id": "Apache-2.0"}}]


def test_installer_agrees_with_record(wheels):
    for wheel in wheels:
        with WheelFile.open(wheel) as opened:
            opened.validate_record(validate_contents=True)


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_check_wheel_contents(wheels):
    # W002: vLLM has equal files (empty __init__.py, equal tuning tables). Two top-level packages
    # are meant.
    options = ("--no-config", "--ignore", "W002", "--toplevel", "vllm,ascend_runtime")
    run("check_wheel_contents", *options, *wheels)


def test_twine_check_strict(wheels):
    assert run("twine", "check", "--strict", *wheels).count("PASSED") == 2


def test_repairwheel_would_write_the_same_bytes(wheels, tmp_path):
    """An independent normaliser (order, modes, dates, RECORD) has nothing to change."""
    for wheel in wheels:
        run("repairwheel", wheel, "-o", tmp_path, SOURCE_DATE_EPOCH="315532800")
        assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


@pytest.mark.parametrize("form", [0, 1])
def test_zip_details(wheels, form):
    with zipfile.ZipFile(tuple(wheels)[form]) as archive:
        assert archive.testzip() is None
        members = archive.infolist()
    assert {m.external_attr >> 16 for m in members} == {0o100644}
    assert {m.date_time for m in members} == {(1980, 1, 1, 0, 0, 0)}
    names = [m.filename for m in members]
    assert names[-1].endswith(".dist-info/RECORD")
    assert names[:-1] == sorted(names[:-1], key=lambda n: (".dist-info/" in n, n))
