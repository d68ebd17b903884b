"""Run the script as a user would: as a process of its own, on a tiny vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "build_patched_vllm.py"

TRANSFORM = '''\
"""Answer 2 instead of 1.

The answer of the small tree is wrong.
"""

from rewriter.edits import In, replace
from rewriter.transform import Transform, Upstream

TRANSFORM = Transform(
    seed=(),
    tag="Misc",
    vllm=">=0.1",
    upstream=Upstream.pending(),
    remove_when="the answer is right",
    edits=[In("vllm/answer.py", "answer").do(replace("1", "2"))],
)
'''


@dataclass
class Kit:
    """A tiny tree, a transform for it, and a folder for everything else."""

    folder: Path
    tree: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def transforms(self) -> Path:
        return self.folder / "transforms"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def command(self, *args: object) -> list[str]:
        own = ["--source", self.tree, "--transforms", self.transforms, "--only", "answer"]
        return [sys.executable, str(SCRIPT), *map(str, [*own, *args])]

    def environment(self) -> dict[str, str]:
        return {**os.environ, "VLLM_ASCEND_CACHE": str(self.folder / "cache"), **self.env}

    def run(
        self, *args: object, before: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run with the small tree and its transform."""
        return self.plain(*self.command(*args)[2:], before=before)

    def plain(
        self, *args: object, before: Callable[[], None] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run with these options only."""
        return subprocess.run(
            [sys.executable, str(SCRIPT), *map(str, args)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=before,
        )

    def build(self, *args: object) -> dict[str, Any]:
        """Build into `out` and return the report."""
        done = self.run("--out", self.out, "--json", *args)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


def error_line(done: subprocess.CompletedProcess[str], status: int = 2) -> str:
    """The one line that a failed run ends with; there is no traceback."""
    assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def litter(folder: Path) -> list[str]:
    """Files and folders below a folder, for what must not be left behind."""
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) if folder.exists() else []
