"""The doctor, on made-up installations: distributions are dist-info folders on a path."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from ascend_runtime import __main__ as command
from ascend_runtime import dispatch, doctor, manifest, owners


class Site:
    """A folder like site-packages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()

    def write(self, path: str, text: str = "") -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def distribution(self, name: str, version: str, *files: str, requires: tuple[str, ...] = ()):
        info = f"{name.replace('-', '_')}-{version}.dist-info"
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        self.write(f"{info}/METADATA", head + "".join(f"Requires-Dist: {r}\n" for r in requires))
        record = ""
        for path in files:
            target = self.root / path
            digest = hashlib.sha256(target.read_bytes()).digest() if target.exists() else b""
            text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            record += f"{path},sha256={text},1\n"
        self.write(f"{info}/RECORD", record)

    def patched(self, name: str = "vllm-ascend-patched") -> None:
        """Install the patched vLLM: three files, a manifest, a dist-info."""
        files = ("vllm/__init__.py", "vllm/a.py", "ascend_runtime/__init__.py")
        for path in files:
            self.write(path, f"# {path}")
        data = {
            "schema": 1,
            "project": "0.1.0",
            "version": "0.18.0+npu.0.1.0",
            "base": {"version": "0.18.0", "sha256": "0" * 64, "file": None, "origin": "tree"},
            "transforms": [
                {
                    "id": "one",
                    "seed": ["platform/3"],
                    "outcome": "applied",
                    "files": ["vllm/a.py"],
                    "added": 2,
                    "removed": 1,
                }
            ],
            "files": {p: hashlib.sha256(f"# {p}".encode()).hexdigest() for p in files},
        }
        self.write("ascend_runtime/manifest.json", json.dumps(data))
        self.distribution(name, "0.18.0+npu.0.1.0", *files, "ascend_runtime/manifest.json")

    def findings(self) -> list[doctor.Finding]:
        return doctor.examine(manifest.load(self.root), self.root, [str(self.root)])

    def checks(self) -> list[str]:
        return [finding.check for finding in self.findings()]


@pytest.fixture
def site(tmp_path, monkeypatch):
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "LD_LIBRARY_PATH", owners.SWITCH):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(doctor.ctypes.util, "find_library", lambda name: None)
    made = Site(tmp_path / "site")
    monkeypatch.setattr(sys, "path", [str(made.root), *sys.path])
    made.patched()
    return made


def test_sound_installation_has_no_findings(site):
    assert site.findings() == []


def test_two_owners(site):
    site.distribution("vllm", "0.18.0", "vllm/__init__.py")
    (finding,) = site.findings()
    assert finding.check == "two-owners"
    assert "vllm 0.18.0 (in " in finding.problem and "vllm-ascend-patched 0.18" in finding.problem
    wheel = "vllm_ascend_patched-0.18.0+npu.0.1.0-py3-none-any.whl"
    assert finding.cure == (
        f"pip uninstall -y vllm vllm-ascend-patched && pip install --no-deps {wheel}"
    )


def test_metadata_without_files_is_no_owner(site):
    site.distribution("vllm", "0.18.0", "vllm-0.18.0.dist-info/METADATA")
    site.distribution("vllm-ascend", "0.18.0", "vllm_ascend/__init__.py")
    assert site.findings() == []


def test_broken_dist_info_is_passed_over(site):
    (site.root / "vllm-0.17.0.dist-info").mkdir()
    assert site.findings() == []


def test_stock_files_over_ours(site):
    site.write("vllm/a.py", "# stock")
    site.write("vllm/new.py")
    site.write("vllm/__pycache__/new.pyc")
    (finding,) = site.findings()
    assert finding.check == "files-differ"
    assert "1 changed (vllm/a.py); 1 not from this wheel (vllm/new.py)" in finding.problem
    assert "remove what is left" in finding.cure


def test_files_gone(site):
    for path in ("vllm/__init__.py", "vllm/a.py"):
        (site.root / path).unlink()
    (site.root / "vllm").rmdir()
    assert site.checks() == ["files-gone", "files-differ"]


def test_manifest_changed_by_hand(site):
    path = site.root / "ascend_runtime/manifest.json"
    path.write_text(path.read_text() + " ")
    assert site.checks() == ["manifest-changed"]


def test_shadowed_by_another_vllm(site, tmp_path, monkeypatch):
    other = Site(tmp_path / "other")
    other.write("vllm/__init__.py")
    monkeypatch.setattr(sys, "path", [str(other.root), *sys.path])
    assert site.checks() == ["shadowed"]


def test_triton_beside_triton_ascend(site):
    site.distribution("triton-ascend", "3.2.0", "triton/__init__.py")
    assert site.findings() == []
    site.distribution("triton", "3.6.0", "triton/__init__.py")
    (finding,) = site.findings()
    assert finding.check == "two-tritons"
    assert finding.cure == (
        "pip uninstall -y triton && pip install --force-reinstall --no-deps triton-ascend==3.2.0"
    )


def test_torch_npu_without_cann(site, monkeypatch, tmp_path):
    site.distribution("torch", "2.9.0")
    site.distribution("torch-npu", "2.9.0", requires=("torch==2.9.0",))
    (finding,) = site.findings()
    assert finding.check == "no-cann" and "set_env.sh" in finding.cure
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path))
    assert site.findings() == []
    monkeypatch.delenv("ASCEND_HOME_PATH")
    (tmp_path / "libascendcl.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}")
    assert site.findings() == []


@pytest.mark.parametrize(
    ("torch", "requires", "wrong"),
    [
        ("2.9.0", ("torch==2.9.0",), False),
        ("2.9.0+cpu", ("torch (==2.9.0)",), False),
        ("2.9.0", ("numpy", "torch==2.9.0+cpu ; platform_machine == 'x86_64'"), False),
        ("2.13.0", ("torch==2.9.0",), True),
        ("2.13.0+cpu", (), True),
        ("2.9.0", (), False),
        (None, ("torch==2.9.0",), True),
    ],
)
def test_torch_of_another_version(site, monkeypatch, torch, requires, wrong):
    monkeypatch.setenv("ASCEND_HOME_PATH", "/cann")
    if torch:
        site.distribution("torch", torch)
    site.distribution("torch-npu", "2.9.0.post1", requires=requires)
    assert site.checks() == (["other-torch"] if wrong else [])


def test_nothing_heavy_is_imported(site):
    site.distribution("torch-npu", "2.9.0")
    before = set(sys.modules)
    site.findings()
    assert not {"torch", "torch_npu", "triton", "vllm"} & (set(sys.modules) - before)


def test_command(site, monkeypatch, capsys):
    monkeypatch.setattr(manifest, "site", lambda: site.root)
    monkeypatch.setattr(doctor, "installed", lambda path=None: [])
    assert command.main([]) == 0
    text = capsys.readouterr().out
    assert "vLLM 0.18.0 edited by vllm-ascend-rewriter 0.1.0" in text
    assert "one  applied           platform/3            +2 -1 in vllm/a.py" in text
    assert "ok: 3 files are as packed" in text
    site.write("vllm/a.py", "# stock")
    assert command.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["findings"][0]["check"] == "files-differ"
    assert command.main([]) == 1
    assert "wrong [files-differ]: of 3 files, 1 changed" in capsys.readouterr().out


def test_source_checkout_is_one_line_and_status_2(site, monkeypatch, capsys):
    (site.root / "ascend_runtime/manifest.json").unlink()
    monkeypatch.setattr(manifest, "site", lambda: site.root)
    assert command.main([]) == 2
    assert capsys.readouterr().err == (
        "python -m ascend_runtime: there is no manifest: this is a source checkout; "
        "run it from another folder, with the Python that the wheel is installed in\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read"),
        ('{"schema": 99}', "schema 99, newer than 1"),
        ('{"schema": 1}', "damaged: 'project'"),
        ("[]", "damaged"),
    ],
)
def test_bad_manifest(site, text, message):
    site.write("ascend_runtime/manifest.json", text)
    with pytest.raises(manifest.ManifestError, match=message):
        manifest.load(site.root)


def test_check_owner_warns_once_for_the_process_and_its_children(site, recwarn):
    owners.check_owner(site.root)
    assert not recwarn.list
    site.distribution("vllm", "0.18.0", "vllm/__init__.py")
    owners.check_owner(site.root)
    owners.check_owner(site.root)
    (warned,) = recwarn.list
    assert "\n" not in str(warned.message) and "cure: pip uninstall -y vllm" in str(warned.message)


def test_the_warning_is_one_line_that_filters_can_reach(site):
    """Python itself would add the line of the source."""
    site.distribution("vllm", "0.18.0", "vllm/__init__.py")
    project = Path(owners.__file__).parents[1]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        code = f"from pathlib import Path; owners.check_owner(Path({str(site.root)!r}))"
        command = [sys.executable, *options, "-c", f"from ascend_runtime import owners; {code}"]
        return subprocess.run(command, capture_output=True, text=True, cwd=project)

    done = run()
    assert done.returncode == 0 and done.stderr.count("\n") == 1
    assert "RuntimeWarning: vllm/ belongs to vllm 0.18.0 and vllm-ascend-patched" in done.stderr
    assert run("-W", "ignore::RuntimeWarning:ascend_runtime").stderr == ""
    failed = run("-W", "error")
    assert failed.returncode == 1 and "RuntimeWarning: vllm/ belongs to" in failed.stderr


def test_check_owner_sees_an_overwritten_file(site, recwarn):
    site.write("vllm/a.py", "# stock")
    owners.check_owner(site.root)
    assert "vllm/a.py is not the file of the patched vLLM" in str(recwarn.list[0].message)


def test_check_owner_is_silent_in_a_checkout(tmp_path, recwarn):
    owners.check_owner(tmp_path)
    assert not recwarn.list


def test_operations_are_told(site, capsys, monkeypatch):
    monkeypatch.setattr(manifest, "site", lambda: site.root)
    assert command.main(["--json"]) == 0
    told = json.loads(capsys.readouterr().out)["operations"]
    assert (told["device"], told["soc"]) == ("cpu", None)
    ways = {one["name"]: one for one in told["table"]}["sampling.apply_top_k_top_p"]
    assert ways == {
        "name": "sampling.apply_top_k_top_p",
        "implementations": [
            {
                "kind": "vendor",
                "socs": ["A2", "A3"],
                "needs": ["torch.ops._C_ascend.npu_apply_top_k_top_p"],
                "missing": ["torch.ops._C_ascend.npu_apply_top_k_top_p"],
            },
            {"kind": "reference", "socs": ["A2", "A3", "310P", "A5"], "needs": [], "missing": []},
        ],
        "chosen": "reference",
    }


def test_operations_are_told_for_the_chip(site, capsys, monkeypatch):
    monkeypatch.setattr(manifest, "site", lambda: site.root)
    monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", "npu")
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "A2")
    monkeypatch.setattr(dispatch, "_has_triton", lambda: True)
    command.main([])
    lines = capsys.readouterr().out.splitlines()
    assert "what does an operation, here on npu A2:" in lines
    (line,) = [line for line in lines if line.startswith("  rejection.greedy ")]
    assert " ".join(line.split()) == "rejection.greedy kernel of kernel (A2/A3, triton) > reference"
    monkeypatch.setenv("ASCEND_RUNTIME_SOC", "310P")
    command.main([])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "rejection.greedy" in line]
    assert line.split()[1] == "reference"


@pytest.mark.parametrize(
    ("variable", "value", "problem", "fails"),
    [
        (
            "ASCEND_RUNTIME_IMPL",
            "fast",
            "ASCEND_RUNTIME_IMPL=fast: 'fast' must be one of upstream, vendor, kernel, reference",
            {"conv.causal_conv1d_fn", "sampling.ranks", "rejection.expand"},
        ),
        (
            "ASCEND_RUNTIME_IMPL",
            "vendor",
            "gdn.sigmoid_gating_update: its vendor needs torch_npu.npu_recurrent_gated_delta_rule"
            " (and 1 more like it)",
            {"gdn.sigmoid_gating_update", "sampling.apply_top_k_top_p"},
        ),
        ("ASCEND_RUNTIME_CORES", "foo", "ASCEND_RUNTIME_CORES=foo: it must be two counts", set()),
        ("ASCEND_RUNTIME_SOC", "A9", "ASCEND_RUNTIME_SOC=A9: it must be one of ", set()),
    ],
)
def test_bad_choice_in_the_environment_is_found(
    site, capsys, monkeypatch, variable, value, problem, fails
):
    monkeypatch.setattr(manifest, "site", lambda: site.root)
    monkeypatch.setenv(variable, value)
    site.patched()
    assert command.main([]) == 1
    told = capsys.readouterr()
    lines = told.out.splitlines()
    assert told.err == ""
    assert [line for line in lines if line.startswith(f"wrong [environment]: {problem}")]
    failing = {line.split()[0] for line in lines if line.split()[1:2] == ["fails"]}
    assert failing == fails if value != "fast" else failing > fails
    assert command.main(["--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in report["operations"]["table"] if not one["chosen"]} == failing
