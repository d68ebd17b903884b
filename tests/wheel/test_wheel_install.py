"""Install orders: stock vLLM before, after, upgraded, removed; with real pip and small wheels.

The drop-in form must be right in each. The renamed form must end right, or say what is wrong.
"""

from __future__ import annotations

import json

from packaging.version import Version


def doctor(venv) -> tuple[int, dict]:
    done = venv.run("-W", "ignore", "-m", "ascend_runtime", "--json")
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, json.loads(done.stdout)


def checks(venv) -> set[str]:
    status, report = doctor(venv)
    assert status == (0 if report["ok"] else 1)
    return {finding["check"] for finding in report["findings"]}


def assert_ours(venv, version: str = "0.1.0") -> None:
    """The edited vLLM is there, whole, alone, and nothing is said on import."""
    status, report = doctor(venv)
    assert (status, report["findings"], report["project"]) == (0, [], version)
    code = "import ascend_runtime, vllm.logger, inspect; print(inspect.getsource(vllm.logger))"
    done = venv.run("-c", code)
    assert "edited for Ascend" in done.stdout and done.stderr == ""
    assert len(list(venv.site.glob("vllm*.dist-info"))) == 1


def assert_gone(venv) -> None:
    left = {path.name for path in venv.site.iterdir()}
    assert not [name for name in left if name.startswith(("vllm", "ascend_runtime"))], left
    assert not (venv.root / "bin/vllm").exists()


def warning(venv) -> str:
    done = venv.run("-c", "import ascend_runtime")
    assert done.returncode == 0 and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def cure(venv) -> None:
    """Do what the doctor says, word for word but for the folder of the wheel."""
    _, report = doctor(venv)
    remove, install = report["findings"][0]["cure"].split(" && ")
    venv.pip(*remove.removeprefix("pip ").split())
    venv.install(*install.removeprefix("pip install --no-deps ").split())


# The drop-in form.


def test_drop_in_clean_and_removed(venv, stand):
    venv.install(stand.first.drop_in)
    assert_ours(venv)
    assert venv._run([venv.root / "bin/vllm"]).stdout == "ran\n"
    venv.uninstall("vllm")
    assert_gone(venv)


def test_drop_in_over_stock(venv, stand):
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.drop_in)
    assert_ours(venv)
    assert not (venv.site / "vllm/only_0_18_0.py").exists()
    assert "already satisfied" in venv.install("vllm==0.18.0")
    assert_ours(venv)
    venv.uninstall("vllm")
    assert_gone(venv)


def test_drop_in_upgraded(venv, stand):
    venv.install(stand.first.drop_in)
    venv.install("-U", stand.second.drop_in)
    assert_ours(venv, "0.2.0")


def test_drop_in_replaced_by_newer_stock(venv, stand):
    venv.install(stand.first.drop_in)
    venv.install("-U", stand.stock["0.19.0"])
    left = {p.relative_to(venv.site).as_posix() for p in venv.site.glob("vllm/*") if p.is_file()}
    assert left == {"vllm/__init__.py", "vllm/_version.py", "vllm/logger.py", "vllm/only_0_19_0.py"}
    assert not (venv.site / "ascend_runtime").exists()


def test_drop_in_replaces_newer_stock(venv, stand):
    venv.install(stand.stock["0.19.0"])
    venv.install(stand.first.drop_in)
    assert_ours(venv)


# The renamed form.


def test_renamed_clean_upgraded_and_removed(venv, stand):
    venv.install(stand.first.renamed)
    assert_ours(venv)
    venv.install("-U", stand.second.renamed)
    assert_ours(venv, "0.2.0")
    venv.uninstall("vllm-ascend-patched")
    assert_gone(venv)


def test_renamed_over_stock_warns_and_the_cure_works(venv, stand, monkeypatch):
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.renamed)
    line = warning(venv)
    assert "vllm/ belongs to vllm 0.18.0 and vllm-ascend-patched 0.18.0+npu.0.1.0" in line
    assert "pip uninstall -y vllm vllm-ascend-patched && pip install --no-deps vllm_ascend" in line
    assert "two-owners" in checks(venv)
    for wheel in stand.first:
        (venv.root / wheel.name).symlink_to(wheel)
    cure(venv)
    assert_ours(venv)


def test_stock_over_renamed(venv, stand):
    """vLLM is now all stock and never imports ascend_runtime: the doctor has to be asked."""
    venv.install(stand.first.renamed)
    venv.install(stand.stock["0.18.0"])
    assert {"two-owners", "files-differ"} <= checks(venv)
    assert "overwrite each other" in warning(venv)


def test_newer_stock_over_renamed(venv, stand):
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.renamed)
    venv.install("-U", stand.stock["0.19.0"])
    assert {"two-owners", "files-differ"} <= checks(venv)
    assert "overwrite each other" in warning(venv)


def test_stock_removed_under_renamed(venv, stand):
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.renamed)
    venv.uninstall("vllm")
    assert {"files-gone", "files-differ"} <= checks(venv)
    assert "is not the file of the patched vLLM" in warning(venv)
    for wheel in stand.first:
        (venv.root / wheel.name).symlink_to(wheel)
    cure(venv)
    assert_ours(venv)


def test_renamed_removed_over_stock(venv, stand):
    """Nothing of ours is left to say that stock vLLM lost its files: a known limit."""
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.renamed)
    venv.uninstall("vllm-ascend-patched")
    assert "No module named ascend_runtime" in venv.run("-m", "ascend_runtime").stderr
    assert venv.run("-c", "import vllm.logger").returncode == 1


def test_both_forms_at_once_warn(venv, stand):
    venv.install(stand.first.drop_in)
    venv.install(stand.first.renamed)
    assert "overwrite each other" in warning(venv)
    assert checks(venv) == {"two-owners"}


def test_switch_silences_the_warning(venv, stand):
    venv.install(stand.stock["0.18.0"])
    venv.install(stand.first.renamed)
    code = "import os; os.environ['ASCEND_RUNTIME_NO_OWNER_CHECK'] = '1'; import ascend_runtime"
    assert venv.run("-c", code).stderr == ""


def test_the_label_satisfies_an_exact_pin_and_sorts_above_empty():
    ours = Version("0.18.0+npu.0.1.0")
    assert ours > Version("0.18.0+empty") > Version("0.18.0")


# The real one.


def test_real_wheel_installs_verifies_and_goes(venv, wheels):
    venv.install(wheels.renamed)
    status, report = doctor(venv)
    assert (status, report["findings"]) == (0, [])
    assert report["files"] > 1975
    took = float(
        venv.run(
            "-c",
            "import json, hashlib, pathlib, warnings, time; from ascend_runtime import owners\n"
            "start = time.perf_counter(); owners.check_owner(); print(time.perf_counter() - start)",
        ).stdout
    )
    assert took < 0.05  # 5 ms where nothing else runs
    edited = venv.site / "vllm/logger.py"
    edited.write_bytes(edited.read_bytes() + b"#\n")
    (venv.site / "vllm/added.py").write_text("")
    (venv.site / "vllm/envs.py").unlink()
    status, report = doctor(venv)
    (finding,) = report["findings"]
    assert finding["check"] == "files-differ"
    for said in ("1 missing (vllm/envs.py)", "1 changed (vllm/logger.py)", "(vllm/added.py)"):
        assert said in finding["problem"]
    venv.uninstall("vllm-ascend-patched")
    (venv.site / "vllm/added.py").unlink()
