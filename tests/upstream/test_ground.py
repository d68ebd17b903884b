"""A ground of ci/upstream_tests.py is whole, or refused; a failure leaves none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from tool_kit import assert_refused, tool

from ci.upstream.ground import Ground, lay
from rewriter.errors import RewriterError


def test_ground_that_cannot_be_written_to(ground: Path) -> None:
    (ground / "tmp").touch()
    done = tool(ground)
    assert (done.returncode, done.stdout) == (2, "") and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: the tests cannot be run: ")


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        (
            "ground.files",
            "is neither empty nor a whole ground of tests; delete it, or name another",
        ),
        ("home/hub", "lacks home/hub/models--a"),
        ("home/hub/models--a/refs", "lacks home/hub/models--a/refs now; delete it"),
        ("pristine/fake_vllm.py", "lacks pristine/fake_vllm.py"),
        ("pyproject.toml", "lacks pyproject.toml"),
    ],
)
def test_ground_that_is_not_whole(ground: Path, lost: str, line: str) -> None:
    path = ground / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert_refused(tool(ground), line)


@pytest.fixture
def laying(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Make `lay` lay a ground of one file, and fill the hub by what is given."""

    def unpack(sdist: object, folder: Path) -> None:
        (folder / "tests").mkdir()
        (folder / "tests/test_a.py").touch()
        (folder / "pyproject.toml").touch()

    def hub(fill: Callable[[Path], None]) -> None:
        module = "ci.upstream.ground"
        monkeypatch.setattr(f"{module}.open_base", lambda **_: SimpleNamespace(sha256=""))
        monkeypatch.setattr(f"{module}.Cache.sdist", lambda *_: Path("sdist"))
        monkeypatch.setattr(f"{module}._unpack_tests", unpack)
        for step in ("_install_pristine", "_install_patched"):
            monkeypatch.setattr(f"{module}.{step}", lambda _, site: site.mkdir())
        monkeypatch.setattr(f"{module}._checked", lambda command, _: fill(command[-1]))

    return hub


def fill(home: Path) -> None:
    (home / "hub/models--a").mkdir(parents=True)


@pytest.mark.parametrize(
    "error", [RewriterError("hub.py failed"), KeyboardInterrupt(), OSError(28, "No space left")]
)
@pytest.mark.parametrize("existed", [False, True])
def test_failure_leaves_no_part_of_a_ground(
    tmp_path: Path, laying: Callable, error: BaseException, existed: bool
) -> None:
    folder = tmp_path / "new"
    if existed:
        folder.mkdir()

    def broken(home: Path) -> None:
        fill(home)
        raise error

    laying(broken)
    wanted = RewriterError if isinstance(error, OSError) else type(error)
    with pytest.raises(wanted):
        lay(folder, ["tests/test_a.py"], print)
    assert list(tmp_path.rglob("*")) == [folder] * existed
    laying(fill)
    assert lay(folder, ["tests/test_a.py"], print).is_laid and Ground(folder).is_laid


def test_ground_is_unfinished_while_the_hub_is_filled(tmp_path: Path, laying: Callable) -> None:
    """As a killed run leaves it, and as a second run finds it."""
    folder, told = tmp_path / "new", []

    def look(home: Path) -> None:
        fill(home)
        with pytest.raises(RewriterError, match="another run is laying the ground"):
            lay(folder, ["tests/test_a.py"], print)
        told.append(tool(folder, "tests/test_a.py"))

    laying(look)
    assert lay(folder, ["tests/test_a.py"], print).is_laid
    assert_refused(told[0], "is unfinished; wait for the run that lays it, or delete it")


def test_files_that_are_not_ours_are_never_removed(tmp_path: Path, laying: Callable) -> None:
    (tmp_path / "mine").touch()
    laying(fill)
    with pytest.raises(RewriterError, match="it is not empty any more"):
        lay(tmp_path, ["tests/test_a.py"], print)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_foreign_folder_is_no_ground(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/mine").touch()
    done = tool(tmp_path / "other", "tests/test_b.py")
    assert done.returncode == 2 and "is neither empty nor a whole ground" in done.stderr
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["mine"]


def test_file_is_moved_to_the_cpu_once_and_stays_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "tests/test_a.py"
    file.parent.mkdir()
    file.write_text("""DEVICES = ["cuda", "cuda:0"]  # cuda
@skipif(not torch.cuda.is_available(), reason="needs cuda")
def test(): x.cuda()""")
    for _ in range(2):
        Ground(tmp_path).move_to_cpu(["tests/test_a.py"])
        assert (
            file.read_text()
            == """DEVICES = ["cpu", "cpu"]  # cuda
@skipif(False, reason="needs cuda")
def test(): x.cpu()"""
        )
