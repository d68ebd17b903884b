"""The command line: what each option does, from the base to the artefacts."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from rewriter import compare, docs, report
from rewriter.base import DEFAULT_VERSION, Base, open_base
from rewriter.cache import Cache, sha256_of
from rewriter.catalog import load, select
from rewriter.diffs import file_mode, unified
from rewriter.errors import ExitStatus, RewriterError
from rewriter.examples import check_examples
from rewriter.html import html
from rewriter.options import parse
from rewriter.outcome import Outcome
from rewriter.output import (
    PAGE,
    REPORT,
    Output,
    check_tree_target,
    refuse_inside,
    write_tree,
)
from rewriter.progress import Progress
from rewriter.rewrite import Pristine, Rewritten, rewrite
from rewriter.series import write_patches
from rewriter.transform import Transform

#: Without it, the command line of the renamed wheel dies.
_NAME_EDIT = "distribution_name"


@dataclass(frozen=True)
class _Edited:
    """A base, the transforms tried on it, and what became of them."""

    base: Base
    transforms: tuple[Transform, ...]
    rewritten: Rewritten
    pristine: Pristine
    work: Path

    @property
    def failed(self) -> bool:
        return any(result.outcome.failed for result in self.rewritten.results)

    @property
    def status(self) -> ExitStatus:
        return ExitStatus.EDITS_FAILED if self.failed else ExitStatus.OK

    def original(self, path: str) -> bytes:
        source = self.pristine(path)
        if source is None:
            raise FileNotFoundError(path)
        return source.data

    def report(self, artifacts: dict[str, str]) -> dict[str, object]:
        return report.to_json(self.base, self.rewritten, self.transforms, artifacts)


class _Command:
    def __init__(self, args: argparse.Namespace, runtime: Path) -> None:
        self.args, self.runtime = args, runtime
        self.cache = Cache.default()
        self.progress = Progress(args.quiet)
        self.written = False
        self.color = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self.catalog = load(args.transforms)
        self.selected = select(self.catalog, args.only, args.skip)

    def run(self) -> ExitStatus:
        args = self.args
        if args.clean_cache:
            return self._clean()
        if args.list:
            return self._list()
        if args.explain is not None:
            return self._explain(self._one(args.explain))
        if args.diff:
            self.selected = (self._one(args.diff),)
        if args.check:
            return self._check()
        if args.diff is not None:
            return self._diff()
        if args.tree is not None:
            return self._tree()
        if args.compare is not None:
            return self._compare()
        return self._build()

    def _one(self, name: str) -> Transform:
        for transform in self.catalog:
            if transform.id == name:
                return transform
        raise RewriterError(f"{name}: no such transform; --list shows all of them")

    def _clean(self) -> ExitStatus:
        freed = self.cache.clean()
        if self.args.json:
            self._json({"freed_bytes": freed})
        else:
            _put(f"freed {freed / 1e6:.1f} MB\n")
        return ExitStatus.OK

    def _list(self) -> ExitStatus:
        if self.args.json:
            self._json({"transforms": [_entry(t) for t in self.selected]})
            return ExitStatus.OK
        width = max((len(t.id) for t in self.selected), default=0)
        for t in self.selected:
            _put(f"{t.id:<{width}}  {', '.join(t.seeds) or '-':<11}  {t.title}\n")
        return ExitStatus.OK

    def _explain(self, transform: Transform) -> ExitStatus:
        if self.args.json:
            self._json({**_entry(transform), "why": transform.body})
        else:
            _put(docs.explain(transform))
        return ExitStatus.OK

    @contextmanager
    def _edited(self) -> Iterator[_Edited]:
        args = self.args
        if args.source and args.vllm:
            raise RewriterError("--source and --vllm exclude each other; --base-version names one")
        with self.cache.work("build") as work:
            with self.progress.stage("open the base"):
                base = open_base(
                    source=args.source,
                    version=args.vllm or DEFAULT_VERSION,
                    base_version=args.base_version,
                    allow_unknown=args.allow_unknown_base,
                    cache=self.cache,
                    work=work,
                    say=self.progress.say,
                )
            pristine = Pristine(base.root)
            with self.progress.stage(f"edit vLLM {base.version}"):
                rewritten = rewrite(base, self.selected, work)
            yield _Edited(base, self.selected, rewritten, pristine, work)

    def _json(self, value: object) -> None:
        _put(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")

    def _tell(self, edited: _Edited, artifacts: dict[str, str]) -> None:
        if self.args.json:
            _put(report.dumps(edited.report(artifacts)))
            return
        width = shutil.get_terminal_size((100, 24)).columns
        text = report.table(edited.rewritten, edited.transforms, color=self.color, width=width)
        _put(text.rstrip("\n") + "\n")

    def _check(self) -> ExitStatus:
        with self._edited() as edited:
            self._tell(edited, {})
            return edited.status if self._examples_hold(edited.work) else ExitStatus.EDITS_FAILED

    def _examples_hold(self, work: Path) -> bool:
        """Run the examples of the user's own transforms; tests do that for ours."""
        folders = [folder.resolve() for folder in self.args.transforms]
        wrong = 0
        for transform in self.selected:
            if transform.source and transform.source.resolve().parent in folders:
                for line in check_examples(transform, work):
                    self.progress.warn(f"{transform.id}: {line}")
                    wrong += 1
        return not wrong

    def _diff(self) -> ExitStatus:
        with self._edited() as edited:
            for path, after in sorted(edited.rewritten.files.items()):
                mode = file_mode(edited.base.root, path)
                _put(unified(path, edited.original(path), after, mode=mode))
            self._failures(edited)
            return edited.status

    def _failures(self, edited: _Edited) -> None:
        for result in edited.rewritten.results:
            if result.outcome.failed:
                self.progress.warn(f"{result.id} {result.outcome}: {result.detail}")

    def _tree(self) -> ExitStatus:
        target = self.args.tree
        refuse_inside("--tree", target, self.args.source)
        check_tree_target(target)
        with self._edited() as edited:
            if not edited.failed:
                files = edited.rewritten.files
                write_tree(target, edited.base.root, files, self.runtime, self.progress.say)
                self.written = True
            self._tell(edited, {})
            if not edited.failed:
                self.progress.say(f"wrote {target}")
            return edited.status

    def _compare(self) -> ExitStatus:
        old = compare.load(self.args.compare)
        with self._edited() as edited:
            found = compare.compare(old, edited.report({}))
            if self.args.json:
                self._json(found.to_json())
            else:
                _put(found.text().rstrip("\n") + "\n")
            return edited.status

    def _refuse_nothing(self, edited: _Edited) -> None:
        outcomes = {result.outcome for result in edited.rewritten.results}
        if Outcome.APPLIED not in outcomes and outcomes != {Outcome.ALREADY_UPSTREAM}:
            raise RewriterError(
                f"no transform edits vLLM {edited.base.version}, so there is nothing to build;"
                " --list --json tells the versions that each is for"
            )

    def _warn_of_the_name(self, edited: _Edited) -> None:
        right = (Outcome.APPLIED, Outcome.ALREADY_UPSTREAM)
        named = [r.outcome for r in edited.rewritten.results if r.id == _NAME_EDIT]
        if not named or named[0] not in right:
            self.progress.warn(
                f"without {_NAME_EDIT} every `vllm` command of the renamed wheel fails with"
                " PackageNotFoundError; use the drop-in wheel"
            )

    def _build(self) -> ExitStatus:
        folder = self.args.out or Path("dist")
        refuse_inside("--out", folder, self.args.source)
        output = Output(folder)
        with output.staging(self.progress.say) as staging, self._edited() as edited:
            if edited.failed:
                self._tell(edited, {})
                self.progress.say("nothing was built")
                return edited.status
            self._refuse_nothing(edited)
            self._warn_of_the_name(edited)
            artifacts = self._artifacts(edited, staging)
            output.publish(staging)
            self.written = True
            self._tell(edited, artifacts)
        for name, sha256 in artifacts.items():
            if name.endswith(".whl"):
                self.progress.say(f"{sha256}  {name}")
        self.progress.say(f"all artefacts are in {folder}")
        return ExitStatus.OK

    def _artifacts(self, edited: _Edited, staging: Path) -> dict[str, str]:
        from rewriter.wheel import build_wheels  # slow to import, and only needed here

        work = edited.work / "wheel"
        work.mkdir()
        with self.progress.stage("build the wheels"):
            wheels = build_wheels(
                base=edited.base,
                rewritten=edited.rewritten,
                transforms=edited.transforms,
                runtime=self.runtime,
                work=work,
                out=staging,
                label=not self.args.no_local_label,
                say=self.progress.say,
            )
        with self.progress.stage("write patches and reports"):
            patches = write_patches(
                edited.base, edited.original, edited.rewritten, edited.transforms, staging
            )
            names = [*(wheel.name for wheel in wheels), *(p.as_posix() for p in patches)]
            artifacts = {name: sha256_of(staging / name) for name in sorted(names)}
            page = html(
                edited.base, edited.rewritten, edited.transforms, edited.original, artifacts
            )
            (staging / PAGE).write_text(page, encoding="utf-8", newline="\n")
            artifacts[PAGE] = sha256_of(staging / PAGE)
            text = report.dumps(edited.report(artifacts))
            (staging / REPORT).write_text(text, encoding="utf-8", newline="\n")
        return artifacts


def _entry(transform: Transform) -> dict[str, object]:
    return {
        "id": transform.id,
        "seed": list(transform.seeds),
        "title": transform.title,
        "upstream": str(transform.upstream),
        "vllm": transform.vllm,
        "files": list(transform.paths),
    }


def _put(text: str | bytes) -> None:
    """Write to standard output. A reader that has seen enough (`| head`) changes no result."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise RewriterError(f"cannot write to standard output: {error.strerror}") from error


def _say_last(line: str) -> None:
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _open_streams() -> None:
    """Give the process the standard streams that its parent closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str], runtime: str) -> int:
    """Run the command line and return its status; `runtime` is the folder `ascend_runtime`."""
    _open_streams()
    args = parse(argv)
    # A terminated build cleans up like an interrupted one.
    with contextlib.suppress(ValueError):  # not the main thread, as in a test
        signal.signal(signal.SIGTERM, _stop)
        signal.signal(signal.SIGHUP, _stop)
    command = None
    try:
        command = _Command(args, Path(runtime))
        return int(command.run())
    except RewriterError as error:
        _say_last(f"error: {error}")
        return int(error.status)
    except KeyboardInterrupt:
        written = command is not None and command.written
        _say_last(f"interrupted; {'all' if written else 'nothing'} was written")
        return int(ExitStatus.INTERRUPTED)
    except OSError as error:
        place = f" {error.filename}" if isinstance(error.filename, str) else ""
        _say_last(f"error: cannot read or write{place}: {error.strerror or error}")
        return int(ExitStatus.BAD_INPUT)
