"""An edited vLLM and ascend_runtime in, two wheels out: one build, two names, repeatable bytes."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import rewriter
from rewriter import manifest as manifests
from rewriter import sbom as sboms
from rewriter.base import Base
from rewriter.cache import MORE_SPACE, NO_SPACE, is_full, no_space
from rewriter.errors import RewriterError
from rewriter.project import Tree, assemble, wheel_version
from rewriter.rewrite import Rewritten
from rewriter.seal import EPOCH, Built, Packer, read_built, seal
from rewriter.transform import Transform

RENAMED = "vllm-ascend-patched"
DROP_IN = "vllm"
#: Settings of the caller that would change what a build finds or writes.
_UNWANTED = re.compile(
    r"(PIP_|SETUPTOOLS_|DISTUTILS_|DIST_EXTRA_|VLLM_|PYTHON(PATH|HOME|STARTUP|WARNINGS|OPTIMIZE)$)"
)
_FULL = re.compile("|".join(re.escape(os.strerror(number)) for number in NO_SPACE))
_LITTLE = 1 << 16
_FIXED = {
    "SOURCE_DATE_EPOCH": str(EPOCH),
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


def build_wheels(
    *,
    base: Base,
    rewritten: Rewritten,
    transforms: Sequence[Transform],
    runtime: Path,
    work: Path,
    out: Path,
    label: bool = True,
    say: Callable[[str], None],
) -> tuple[Path, Path]:
    """Build the renamed wheel and the drop-in wheel; return their paths in that order.

    `runtime` is the source folder `ascend_runtime/`, `work` an empty scratch folder, `out` the
    folder for the wheels. `label=False` leaves the local version label away. Raises RewriterError,
    with neither wheel in `out`, for a base that cannot be packed, a failing backend, a full disk.
    """
    project_version = rewriter.__version__
    version = wheel_version(base.version, project_version, label=label)
    with _readable_os_errors(work), ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1)) as pool:
        say(f"assembling {RENAMED} {version}")
        tree = assemble(
            base=base,
            rewritten=rewritten,
            transforms=transforms,
            runtime=runtime,
            root=work / "tree",
            name=RENAMED,
            version=version,
            project_version=project_version,
        )
        packer = Packer()
        try:
            packer.start(pool, tree.files.values())  # the backend takes seconds on another core
            say("building the wheel with setuptools")
            built = read_built(_run_backend(tree, work), tree.files, packer)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        say("sealing both wheels")
        with _readable_os_errors(out, "free space there, or name another folder by --out"):
            return _seal_both(built, base, tree.files[manifests.PATH], version, out)


def _seal_both(
    built: Built, base: Base, manifest: bytes, version: str, out: Path
) -> tuple[Path, Path]:
    """Write both forms, or neither."""
    project_version = rewriter.__version__
    made: list[Path] = []
    try:
        for name in (RENAMED, DROP_IN):
            bom = sboms.sbom(
                base, name=name, version=version, project_version=project_version, manifest=manifest
            )
            sealed = seal(
                built,
                name=name,
                version=version,
                generator=f"vllm-ascend-rewriter {project_version}",
                added={sboms.PATH: bom},
                out=out,
            )
            made.append(sealed)
    except BaseException:
        for path in made:
            path.unlink(missing_ok=True)
        raise
    return made[0], made[1]


@contextlib.contextmanager
def _readable_os_errors(writing: Path, cure: str = MORE_SPACE) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if is_full(error):
            # What is made beside its place lies in a hidden folder, which is gone afterwards.
            folder = writing.parent if writing.name.startswith(".") else writing
            raise no_space("cannot build the wheels", error, folder, cure) from error
        place = f"{Path(error.filename).name}: " if error.filename else ""
        reason = error.strerror or type(error).__name__
        raise RewriterError(f"cannot build the wheels: {place}{reason}") from error


def _run_backend(tree: Tree, work: Path) -> Path:
    """Build the tree through `build` with the installed setuptools; return the wheel.

    Raises RewriterError with the last telling line of the backend's output.
    """
    out, log = work / "built", work / "build.log"
    out.mkdir()
    command = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
    command += ["--skip-dependency-check", "--config-setting=--global-option=--no-user-cfg"]
    command += ["--outdir", str(out), str(tree.root)]
    with log.open("wb") as file:
        status = _run(command, {**_scrubbed(os.environ), "TMPDIR": str(work)}, work, file.fileno())
    wheels = list(out.glob("*.whl"))
    if status != 0 or len(wheels) != 1:
        if full := _FULL.search(log.read_text("utf-8", "replace")):
            raise no_space("building the wheel failed", full[0], work)
        # Not even the log may have been written to its end.
        if shutil.disk_usage(work).free < _LITTLE:
            raise no_space("building the wheel failed", "No space left on device", work)
        try:
            with log.open("ab") as file:
                file.write(b"\n")
        except OSError as error:
            if is_full(error):
                raise no_space("building the wheel failed", error, work) from error
        raise RewriterError(f"building the wheel failed: {_telling_line(log)}")
    return wheels[0]


def _scrubbed(environment: os._Environ[str]) -> dict[str, str]:
    kept = {key: value for key, value in environment.items() if not _UNWANTED.match(key)}
    return {**kept, **_FIXED}


def _run(command: list[str], environment: dict[str, str], folder: Path, output: int) -> int:
    """Run a command in a process group of its own, which does not outlive this call."""
    process = subprocess.Popen(
        command,
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        return process.wait()
    except BaseException:  # Ctrl-C goes to our group only: the child must be told
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _telling_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line]
    errors = [
        line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|.*No module named", line)
    ]
    line = (errors or lines or ["it said nothing"])[-1]
    return line if len(line) <= 300 else line[:297] + "..."
