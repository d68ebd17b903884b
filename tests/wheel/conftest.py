"""The wheels under test: one pair from the real sdist, and small pairs with the same layout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from small_tree import write_small_tree

import rewriter
from rewriter.base import Base
from rewriter.outcome import FileChange, Outcome, Result
from rewriter.rewrite import Rewritten
from rewriter.wheel import build_wheels

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "ascend_runtime"
SHA256 = "9a1bee091db8dbb4664a2a09cd9c61912e9912a44af1ce12b8593a231d05971c"
EDITED = "vllm/logger.py"


@dataclass(frozen=True)
class Pair:
    """Both forms and what they were built from."""

    renamed: Path
    drop_in: Path
    base: Base
    rewritten: Rewritten

    def __iter__(self) -> Iterator[Path]:
        return iter((self.renamed, self.drop_in))


def edit(base: Base, path: str = EDITED) -> Rewritten:
    """Return a rewrite of one file, without the engine."""
    data = (base.root / path).read_bytes() + b"\n# edited for Ascend\n"
    result = Result("one_edit", Outcome.APPLIED, "", (FileChange(path, 1, 2, 0),))
    other = Result("not_here", Outcome.NOT_APPLICABLE, "vLLM >=99")
    return Rewritten((other, result), {path: data}, {}, ())


def build(
    base: Base, work: Path, *, rewritten: Rewritten | None = None, label: bool = True
) -> Pair:
    (work / "scratch").mkdir(parents=True)
    (work / "out").mkdir()
    rewritten = rewritten or edit(base)
    renamed, drop_in = build_wheels(
        base=base,
        rewritten=rewritten,
        transforms=[],
        runtime=RUNTIME,
        work=work / "scratch",
        out=work / "out",
        label=label,
        say=lambda line: None,
    )
    return Pair(renamed, drop_in, base, rewritten)


@pytest.fixture(scope="session")
def sdist_tree(base: Base) -> Path:
    """The unpacked sdist of vLLM 0.18.0."""
    return base.root


@pytest.fixture(scope="session")
def wheels(sdist_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Both wheels of the real vLLM, with one file edited."""
    base = Base("0.18.0", SHA256, "sdist", sdist_tree, "vllm-0.18.0.tar.gz")
    return build(base, tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def small_base(tmp_path: Path) -> Base:
    """A tiny vLLM 0.18.0, for what does not depend on the real one."""
    return Base("0.18.0", "0" * 64, "tree", write_small_tree(tmp_path / "base"))


@dataclass(frozen=True)
class Stand:
    """Small wheels with the layout of the real ones: two releases of ours, two of stock vLLM."""

    first: Pair
    second: Pair
    stock: dict[str, Path]


@pytest.fixture(scope="session")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Stand:
    folder = tmp_path_factory.mktemp("stand")
    base = Base("0.18.0", "0" * 64, "tree", write_small_tree(folder / "base"))
    pairs = []
    with pytest.MonkeyPatch.context() as patch:
        for version in ("0.1.0", "0.2.0"):
            patch.setattr(rewriter, "__version__", version)
            pairs.append(build(base, folder / version))
    stock = {version: _stock(folder, version) for version in ("0.18.0", "0.19.0")}
    return Stand(pairs[0], pairs[1], stock)


def _stock(folder: Path, version: str) -> Path:
    """Write a wheel as upstream would publish it: no ascend_runtime, a file of its own."""
    info = f"vllm-{version}.dist-info"
    files = {
        "vllm/__init__.py": "OWNER = 'vllm'\n",
        "vllm/_version.py": f"__version__ = version = '{version}'\n",
        "vllm/logger.py": "OWNER = 'vllm'\n",
        f"vllm/only_{version.replace('.', '_')}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    path = folder / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


@dataclass(frozen=True)
class Venv:
    """A virtual environment that this test run's pip works on."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "bin/python"

    @property
    def site(self) -> Path:
        return self.root / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

    def pip(self, *arguments: str | Path) -> str:
        command = [sys.executable, "-m", "pip", "--python", self.python, "--isolated"]
        command += ["--disable-pip-version-check", *arguments]
        done = self._run(command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, *arguments: str | Path) -> str:
        return self.pip("install", "--no-index", "--no-deps", "--no-compile", *arguments)

    def uninstall(self, *names: str) -> str:
        return self.pip("uninstall", "-y", *names)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run([self.python, *arguments])

    def _run(self, command: list[str | Path]) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "ASCEND"))}
        return subprocess.run(command, capture_output=True, text=True, env=clean, cwd=self.root)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    import venv as venvs

    venvs.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return Venv(tmp_path / "venv")


Builder = Callable[..., Pair]


@pytest.fixture(scope="session")
def builder() -> Builder:
    """`build(base, work, rewritten=..., label=...)`, for tests in other files."""
    return build
