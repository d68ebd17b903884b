"""The ground that upstream's tests run on: their files, both trees, a platform and a hub."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rewriter.base import DEFAULT_VERSION, Base, open_base
from rewriter.cache import Cache, os_errors
from rewriter.errors import RewriterError
from rewriter.metadata import read_metadata

ROOT = Path(__file__).resolve().parents[2]
PLATFORM = ROOT / "tests/platform"
TREES = ("pristine", "patched")
#: Written last, with the paths of all that a whole ground has; and what stands for it till then.
_MARKER, _LAYING = "ground.files", "ground.unfinished"
#: How a test file names the GPU, and what it says instead to run on the CPU.
_ON_CPU = {
    '"cuda:0"': '"cpu"',
    '"cuda"': '"cpu"',
    ".cuda()": ".cpu()",
    "not torch.cuda.is_available()": "False",
}
#: Settings of the caller that would reach vLLM or the hub.
_UNWANTED = ("VLLM_", "HF_", "HUGGING", "TRANSFORMERS_", "PYTHON", "PYTEST_", "TORCH_", "CUDA_")


@dataclass(frozen=True)
class Ground:
    """A folder with `tests/` and `pyproject.toml` of vLLM, and beside them what they need.

    `pristine/` and `patched/` are folders of importable packages: vLLM with its metadata, and the
    test platform. `home/` is $HOME and $HF_HOME.
    """

    folder: Path

    @property
    def is_laid(self) -> bool:
        """Whether all of it is there, from an earlier run.

        Raises RewriterError if only a part is there, or other files, or it cannot be read.
        """
        with os_errors("the ground of tests cannot be used"):
            if not self.folder.exists() or not any(self.folder.iterdir()):
                return False
            remedy = "delete it, or name another folder"
            marker = self.folder / _MARKER
            if (self.folder / _LAYING).exists():
                raise RewriterError(
                    f"the ground {self.folder} is unfinished; wait for the run that lays it, or"
                    " delete it if that was killed"
                )
            if not marker.is_file():
                raise RewriterError(
                    f"{self.folder} is neither empty nor a whole ground of tests; {remedy}"
                )
            for path in marker.read_text("utf-8", "surrogateescape").splitlines():
                if not os.path.lexists(self.folder / path):
                    raise RewriterError(f"the ground {self.folder} lacks {path} now; {remedy}")
        return True

    def seal(self) -> None:
        """Write that all is there; what is lost later is then told by `is_laid`."""
        paths = [
            path.relative_to(self.folder).as_posix()
            for place in ("tests", "home/hub", *TREES)
            for path in sorted((self.folder / place).rglob("*"))
            if "__pycache__" not in path.parts
        ]
        part = self.folder / _LAYING
        lines = "".join(f"{path}\n" for path in ["pyproject.toml", "home", *TREES, *paths])
        part.write_text(lines, "utf-8", "surrogateescape")
        part.replace(self.folder / _MARKER)

    def check(self, paths: Sequence[str]) -> None:
        """Raise RewriterError if vLLM's sdist lacks one of the test files."""
        for path in paths:
            if not path.startswith("tests/") or not (self.folder / path).is_file():
                raise RewriterError(f"vLLM's sdist has no test file {path}; see --list")

    def move_to_cpu(self, paths: Sequence[str]) -> None:
        """Let test files that name a GPU name the CPU; all else of them stays."""
        for path in paths:
            file = self.folder / path
            text = file.read_text("utf-8")
            for gpu, cpu in _ON_CPU.items():
                text = text.replace(gpu, cpu)
            file.write_text(text, "utf-8")

    def environment(self, tree: str) -> dict[str, str]:
        """Return the environment in which tests see one tree, and the hub of stand-ins."""
        home = self.folder / "home"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_UNWANTED)}
        temporary = self.folder / "tmp" / tree
        temporary.mkdir(parents=True, exist_ok=True)
        path = [os.environ["PATH"]] if "PATH" in os.environ else []
        paths = [self.folder / tree, Path(__file__).parent, self.folder]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "XDG_CONFIG_HOME": str(home / "config"),
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "TMPDIR": str(temporary),
            "DO_NOT_TRACK": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PATH": os.pathsep.join(
                map(str, (self.folder / tree / "bin", Path(sys.executable).parent, *path))
            ),
        }


def lay(folder: Path, paths: Sequence[str], say: Callable[[str], None]) -> Ground:
    """Lay the ground in an empty folder, to run the test files `paths` on.

    Raises RewriterError if vLLM's sdist cannot be had or lacks one of them, an edit does not fit,
    this environment lacks a package, or the folder cannot be written. The folder is empty again
    after any failure; one that a killed process left unfinished is not a ground.
    """
    _check_packages()
    ground = Ground(folder)
    with os_errors("the ground of tests cannot be laid", folder), _claimed(folder):
        with tempfile.TemporaryDirectory() as work:
            cache = Cache.default()
            base = open_base(
                source=None,
                version=DEFAULT_VERSION,
                base_version=None,
                allow_unknown=False,
                cache=cache,
                work=Path(work),
                say=say,
            )
            sdist = cache.sdist(base.sha256)
            assert sdist
            say("unpacking vLLM's tests")
            _unpack_tests(sdist, folder)
            ground.check(paths)
            _install_pristine(base, folder / "pristine")
            say("building the patched vLLM")
            _install_patched(Path(work), folder / "patched")
        for tree in TREES:
            _install_platform(folder / tree)
        say("filling the hub")
        environment = {**ground.environment("pristine"), "PYTHONPATH": ""}
        _checked([sys.executable, PLATFORM / "hub.py", folder / "home"], environment)
        ground.seal()
    return ground


@contextlib.contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Have an empty folder for this process alone, and empty it again after a failure."""
    existed = folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / _LAYING).touch(exist_ok=False)
    except FileExistsError as error:
        raise RewriterError(f"another run is laying the ground {folder}") from error
    if any(path.name != _LAYING for path in folder.iterdir()):
        (folder / _LAYING).unlink()
        raise RewriterError(f"the ground {folder} cannot be laid: it is not empty any more")
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # what stays is no ground, for _LAYING goes last
            for path in folder.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path.name != _LAYING:
                    path.unlink()
            (folder / _LAYING).unlink()
            if not existed:
                folder.rmdir()
        raise


def _check_packages() -> None:
    modules = ("torch", "transformers", "multiprocess", "pytest_asyncio", "pytest_timeout", "tblib")
    missing = [m.replace("_", "-") for m in modules if importlib.util.find_spec(m) is None]
    if missing:
        names = ", ".join(missing)
        raise RewriterError(f"{names} is missing here; install ci/requirements.txt first")


def _unpack_tests(sdist: Path, folder: Path) -> None:
    """Unpack `tests/` and `pyproject.toml` of a verified sdist."""
    with tarfile.open(sdist) as tar:
        for member in tar:
            top, _, place = member.name.partition("/")
            if place == "pyproject.toml" or place.startswith("tests/"):
                member.name = place
                if member.islnk():
                    member.linkname = member.linkname.removeprefix(f"{top}/")
                tar.extract(member, folder, filter="data")


def _install_pristine(base: Base, site: Path) -> None:
    """Put the base's `vllm/` into a site folder, with as much metadata as vLLM itself reads."""
    shutil.copytree(base.root / "vllm", site / "vllm")
    info = site / f"vllm-{base.version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {base.version}\n")
    lines = []
    for group, points in read_metadata(base).entry_points.items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    (site / "bin").mkdir()
    command = site / "bin/vllm"
    command.write_text(f"#!{sys.executable}\nfrom vllm.entrypoints.cli.main import main\nmain()\n")
    command.chmod(0o755)


def _install_patched(work: Path, site: Path) -> None:
    """Build the drop-in wheel and install it into a site folder."""
    out = work / "dist"
    _checked([sys.executable, ROOT / "scripts/build_patched_vllm.py", "--quiet", "--out", out])
    (wheel,) = out.glob("vllm-*.whl")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _checked([*pip, "--no-index", "--no-deps", "--no-compile", "--target", site, wheel])


def _install_platform(site: Path) -> None:
    sys.path.insert(0, str(PLATFORM))
    from torch_platform import install

    install(site)


def _checked(command: list[str | Path], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it said nothing"]
        raise RewriterError(f"{Path(command[1]).name} failed: {lines[-1]}")
