"""A made-up build with every outcome and much odd text, for the tests of the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rewriter import diffs
from rewriter.base import Base
from rewriter.outcome import FileChange, Near, Outcome, Problem, Result
from rewriter.rewrite import Rewritten
from rewriter.transform import Example, Transform, Upstream

EXECUTOR = "vllm/v1/executor/multiproc_executor.py"
SAMPLER = "vllm/v1/sample/ops/topk_topp_sampler.py"
FUSION = "vllm/compilation/passes/fusion/allreduce_rms_fusion_with_a_rather_long_name.py"

ORIGINALS = {
    EXECUTOR: b'''\
"""Workers in processes of their own."""

import os
import time


class WorkerProc:
    """One worker."""

    READY = "READY"

    @staticmethod
    def make_worker_process(vllm_config, local_rank, rank, distributed_init_method, handle):
        """Start a worker.

        The worker is a daemon, so that it ends with its parent.
        """
        context = get_mp_context()
        process_kwargs = {"vllm_config": vllm_config, "local_rank": local_rank}
        proc = context.Process(
            target=WorkerProc.worker_main,
            kwargs=process_kwargs,
            name=f"VllmWorker-{rank}",
            daemon=True,
        )
        proc.start()  # </script><b>not markup</b> & "quotes"
        return proc


def wait(handles):
    for handle in handles:
        handle.wait()
        time.sleep(0)
''',
    SAMPLER: b"def apply(logits, k, p):\n    order = logits.argsort(dim=-1)\n    return order\n",
    FUSION: b"OPS = [\n    'a',\n]\r\nTAIL = 1",
}
EDITED = {
    EXECUTOR: ORIGINALS[EXECUTOR]
    .replace(b"daemon=True,", b"daemon=ascend_runtime.executor.worker_daemon(),")
    .replace(b"import time\n", b"import time\n\nimport ascend_runtime.executor\n"),
    SAMPLER: ORIGINALS[SAMPLER]
    .replace(
        b"    order = logits.argsort(dim=-1)\n",
        b"    logits = logits.float()\n    order = logits.argsort(dim=-1, stable=True)\n"
        b"    order = order.int()\n",
    )
    .replace(b"    return order\n", b"    return order[..., :k]\n"),
    FUSION: ORIGINALS[FUSION]
    .replace(b"'a',\n", b"'a',\n    'b',\n")
    .replace(b"TAIL = 1", b"TAIL = 2\n"),
}
NASTY_BODY = """
Workers are daemonic, and Python forbids daemonic processes to have children. Dynamic expert load
balancing starts one, so `daemon=True` must give way; see https://host.example/issues/7.

A body may hold </script><b>bold</b> <img src=x onerror="document.title='owned'"> and {{ braces }}.

* first point, with `a < b`
* second point

    code = "indented"
        stays = True
"""


@dataclass(frozen=True)
class SampleEdit:
    """Stands in for an edit of `rewriter.edits`."""

    words: str

    def describe(self) -> str:
        return self.words


@dataclass(frozen=True)
class SampleTarget:
    """Stands in for a target of `rewriter.edits`."""

    path: str
    scope: str = ""
    edits: Sequence[SampleEdit] = (SampleEdit("replace `a` by `b`"),)
    imports: Sequence[str] = ()
    dropped: Sequence[str] = ()

    def mentions(self, text: str) -> bool:
        return False


BASE = Base(
    version="0.18.0",
    sha256="9a" * 32,
    origin="sdist",
    root=Path("not", "to", "be", "shown"),
    file="vllm-0.18.0.tar.gz",
)


@dataclass
class Sample:
    """Everything that a report is made from."""

    rewritten: Rewritten
    transforms: list[Transform]
    base: Base = BASE
    artifacts: dict[str, str] = field(
        default_factory=lambda: {
            "vllm_ascend_patched-0.18.0+npu.0.1.0-py3-none-any.whl": "cd" * 32,
            "patches/series/0001-worker_daemon.patch": "ab" * 32,
        }
    )
    originals: Callable[[str], bytes] = ORIGINALS.__getitem__


def make(
    id: str,
    title: str = "Change a thing",
    body: str = "\nIt was wrong.\n",
    *,
    seed: str | Sequence[str] = (),
    upstream: Upstream | None = None,
    targets: Sequence[SampleTarget] = (SampleTarget(EXECUTOR),),
    examples: Sequence[Example] = (),
    after: Sequence[str] = (),
    lines: int = 30,
    patch_lines: int = 0,
) -> Transform:
    """Return a transform; only what a test looks at need be given."""
    return Transform(
        seed=seed,
        tag="Bugfix",
        vllm=">=0.18,<0.20",
        upstream=upstream or Upstream.pending(),
        remove_when="vLLM lets a platform choose",
        edits=targets,  # type: ignore[arg-type]
        examples=examples,
        after=after,
        monkey_patch_lines=patch_lines,
    ).bound(
        id=id,
        doc=f"{title}.\n{body}",
        source=Path("not", "to", "be", "shown", f"{id}.py"),
        source_lines=lines,
    )


def applied(id: str, *paths: str) -> Result:
    changes = [
        FileChange(path, 1, *diffs.count(ORIGINALS[path], EDITED[path])) for path in sorted(paths)
    ]
    return Result(id, Outcome.APPLIED, files=tuple(changes))


def good() -> Sample:
    """A build in which all edits fit."""
    transforms = [
        make(
            "worker_daemon",
            "Let executor workers start processes of their own",
            NASTY_BODY,
            seed="platform/3",
            upstream=Upstream.inappropriate("the switch is an Ascend environment variable"),
            lines=27,
            patch_lines=211,
        ),
        make(
            "stable_argsort",
            "Sort stably, over 32 bits",
            seed=["worker/7", "worker/7a"],
            targets=[SampleTarget(SAMPLER, "apply"), SampleTarget(FUSION)],
            lines=48,
            patch_lines=90,
        ),
        make(
            "routed_experts", "Name the device", seed="worker/15", upstream=Upstream.backport("#7")
        ),
        make("later_only", "Change what a later release adds", seed="worker/20"),
    ]
    files = {"worker_daemon": {EXECUTOR: EDITED[EXECUTOR]}}
    files["stable_argsort"] = {path: EDITED[path] for path in (SAMPLER, FUSION)}
    results = (
        Result("later_only", Outcome.NOT_APPLICABLE, "declared for vLLM >=0.19"),
        Result("routed_experts", Outcome.ALREADY_UPSTREAM, "`device` is taken from the platform"),
        applied("stable_argsort", SAMPLER, FUSION),
        applied("worker_daemon", EXECUTOR),
    )
    series = tuple((id, files[id]) for id in ("stable_argsort", "worker_daemon"))
    return Sample(Rewritten(results, EDITED, files, series), transforms)


def bad() -> Sample:
    """A build in which three transforms fail, each in its own way."""
    sample = good()
    drifted = Problem(
        EXECUTOR,
        "WorkerProc.make_worker_process",
        "set `daemon=ascend_runtime.executor.worker_daemon()` in `context.Process(...)`",
        "1 match",
        "0 matches",
        (
            Near(EXECUTOR, 412, "proc = context.Process(\n    target=WorkerProc.worker_main,\n)"),
            Near(EXECUTOR, 77, "proc = ctx.Process(target=<b>worker</b>, daemon=is_daemon)"),
        ),
    )
    fixed = Problem(
        SAMPLER, "apply", "replace `x` by `y`", "1 match", "0 matches", looks_fixed=True
    )
    missing = Problem(FUSION, "", "add `b` to `OPS`", "the file", "no such file")
    clash = Problem(SAMPLER, "apply", "replace `p`\nby `q`", "code of its own", "an edit of other")
    more = (
        Result(
            "daemon_drifted", Outcome.DRIFTED, "1 of 2 edits does not fit", (), (drifted, fixed)
        ),
        Result("ops_missing", Outcome.TARGET_MISSING, "", (), (missing,)),
        Result("two_owners", Outcome.CONFLICT, "with stable_argsort", (), (clash,)),
    )
    old = sample.rewritten
    sample.rewritten = Rewritten((*old.results, *more), old.files, old.alone, old.series)
    sample.transforms += [
        make("daemon_drifted", "Keep the daemon flag", seed="platform/4"),
        make("ops_missing", "Add a fusion operator", targets=[SampleTarget(FUSION)]),
        make("two_owners", "Sort otherwise", targets=[SampleTarget(SAMPLER)], seed="worker/9"),
    ]
    sample.artifacts = {}
    return sample
