"""Run vLLM's own tests on the pristine and on the patched tree, and compare test by test.

usage: python ci/upstream_tests.py [options] [tests/FILE.py ...]

The files, how many of their tests pass, and what a transform changes on purpose are listed in
ci/upstream_tests.toml. The tests come from vLLM's sdist, the patched tree is built from the
transforms as they are; a test platform, a hub of stand-ins and no GPU are what they run on.

Exit status 0 if each test has the same outcome on both trees and as many pass as are expected, 1 if
not, 2 for bad input or a place that cannot be written, which one line tells, 130 when interrupted.
Nothing is written but temporary and cache folders, and what --ground, --log and --update name.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from threading import Lock

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ci.upstream.expected import (  # noqa: E402
    LIST,
    TestFile,
    check_update,
    count_faults,
    faults,
    passing,
    read_list,
    update_list,
)
from ci.upstream.ground import TREES, Ground, lay  # noqa: E402
from ci.upstream.runs import OUTCOMES, Run, run, stop  # noqa: E402
from rewriter.cache import os_errors  # noqa: E402
from rewriter.errors import RewriterError  # noqa: E402

#: The runs of a tree, by the path of each file.
Results = dict[str, dict[str, Run]]


def say(line: str) -> None:
    """Tell of progress, beside the table."""
    with suppress(OSError):  # progress that nobody can read stops no run
        print(line, file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Write to standard output; a reader that has seen enough (`| head`) changes no result."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at the end
        if not isinstance(error, BrokenPipeError):
            raise RewriterError(f"cannot write to standard output: {error.strerror}") from error


def chosen(files: Sequence[TestFile], paths: Sequence[str]) -> list[TestFile]:
    """Return the files asked for, with what the list says of them, or else the whole list."""
    listed = {file.path: file for file in files}
    return [listed.get(path, TestFile(path)) for path in dict.fromkeys(paths)] or list(files)


def run_all(
    ground: Ground,
    files: Sequence[TestFile],
    trees: Sequence[str] = TREES,
    jobs: int = 2,
    together: bool = False,
    say: Callable[[str], None] = say,
) -> Results:
    """Run all files on each tree; `together` means in one process, whatever the list says.

    Raises RewriterError if the sdist lacks one.
    """
    ground.check([file.path for file in files])
    ground.move_to_cpu([file.path for file in files if file.on_cpu])
    groups: dict[str, list[TestFile]] = {}
    alone = Lock()
    for file in files:
        groups.setdefault("all" if together else file.group, []).append(file)

    def work(tree: str, name: str) -> tuple[str, str, Run]:
        members = groups[name]
        with alone if any(file.alone for file in members) else nullcontext():
            done = run(
                ground,
                tree,
                [file.path for file in members],
                [test for file in members for test in file.leave_out],
                timeout=sum(file.timeout for file in members),
            )
        return tree, name, done

    results: Results = {tree: {} for tree in trees}
    with ThreadPoolExecutor(jobs) as pool:
        # The same group on both trees side by side, so that both meet the same load.
        waiting = [pool.submit(work, tree, name) for name in groups for tree in trees]
        try:
            for number, finished in enumerate(as_completed(waiting), 1):
                tree, name, done = finished.result()
                say(
                    f"[{number}/{len(waiting)}] {tree} {name}: {len(done.outcomes)} tests,"
                    f" {done.seconds:.0f} s{', ' + done.fault if done.fault else ''}"
                )
                results[tree].update({file.path: done for file in groups[name]})
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            stop()
            raise
    return results


def cells(done: Run, path: str) -> str:
    """Return the four counts of one file on one tree."""
    counts = done.counts(path)
    return "/".join(str(counts[outcome]) for outcome in OUTCOMES)


def report(files: Sequence[TestFile], results: Results) -> bool:
    """Print the table and what is wrong; return whether all is well."""
    trees = list(results)
    width = max(len(file.path) for file in files)
    heads = "".join(f"{tree:>18}" for tree in trees)
    print(f"{'passed/failed/error/skipped':<{width}}{heads}  verdict")
    well = True
    for file in files:
        runs = [results[tree][file.path] for tree in trees]
        if len(runs) == 2:
            wrong = faults(file, *runs)
        else:
            wrong = [runs[0].fault] if runs[0].fault else []
            wrong += count_faults(file, runs[0].counts(file.path)["passed"])
        verdict = "WRONG" if wrong else "same" if len(runs) == 2 else "as expected"
        if not wrong and file.differs and len(runs) == 2:
            verdict = f"same but for {len(file.differs)} on purpose"
        if not wrong and file.on_cpu and len(runs) == 2:
            verdict = "none lost"
        shown = "".join(f"{cells(done, file.path):>18}" for done in runs)
        print(f"{file.path:<{width}}{shown}  {verdict}")
        for line in wrong:
            print(f"    {line}")
        well = well and not wrong
    return well


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], allow_abbrev=False
    )
    parser.add_argument("files", nargs="*", metavar="tests/FILE.py", help="run these only")
    parser.add_argument("--tree", choices=TREES, help="run on one tree only")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at once")
    parser.add_argument("--list", action="store_true", help="print the list, run nothing")
    parser.add_argument("--update", action="store_true", help="write the counts into the list")
    parser.add_argument("--log", type=Path, metavar="DIR", help="keep pytest's output there")
    parser.add_argument(
        "--ground",
        type=Path,
        metavar="DIR",
        help="keep the trees there; if they are there already, take them as they are",
    )
    parser.add_argument("--expected", type=Path, default=LIST, metavar="TOML", help="another list")
    return parser.parse_args(arguments)


def print_list(files: Sequence[TestFile]) -> None:
    for file in files:
        print(f"{file.path:<72}{file.passes or 0:>5} passes  process {file.process or 'its own'}")
        for kind, tests in (("left out", file.leave_out), ("changed", file.differs)):
            for test, reason in tests.items():
                print(f"    {kind}: {test.partition('::')[2]} ({reason})")


def keep_logs(folder: Path, results: Results) -> None:
    with os_errors("the logs cannot be kept", folder):
        for tree, runs in results.items():
            for path, done in runs.items():
                name = path.removesuffix(".py").replace("/", "-")
                (folder / f"{tree}-{name}.log").write_text(done.log, "utf-8")


def check_arguments(args: argparse.Namespace, files: Sequence[TestFile]) -> None:
    """Raise RewriterError for what could not be done after the tests have run."""
    if args.jobs < 1:
        raise RewriterError("--jobs must be at least 1")
    if args.update:
        if args.tree or args.list:
            raise RewriterError("--update needs runs on both trees; leave out --tree and --list")
        check_update([file.path for file in files], args.expected)
    if args.log and not args.list:
        with os_errors("the logs cannot be kept", args.log):
            args.log.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=args.log).close()


def counted(files: Sequence[TestFile], results: Results) -> dict[str, int]:
    """Return how many tests of each file pass, but for those whose process ended early."""
    counts = {}
    for file in files:
        runs = [results[tree][file.path] for tree in TREES]
        if not any(run.fault for run in runs):
            counts[file.path] = passing(*runs, file)
    return counts


def work(args: argparse.Namespace) -> int:
    """Do what the arguments say; return the exit status."""
    begin, table = time.monotonic(), io.StringIO()
    files = chosen(read_list(args.expected), args.files)
    check_arguments(args, files)
    if args.list:
        with redirect_stdout(table):
            print_list(files)
        put(table.getvalue())
        return 0
    with tempfile.TemporaryDirectory(prefix="upstream-tests-") as folder:
        ground = Ground(Path(os.path.realpath(args.ground or Path(folder, "ground"))))
        if not ground.is_laid:
            lay(ground.folder, [file.path for file in files], say)
        results = run_all(ground, files, [args.tree] if args.tree else TREES, args.jobs)
    counts = counted(files, results) if args.update else {}
    files = [replace(file, passes=counts.get(file.path, file.passes)) for file in files]
    with redirect_stdout(table):
        well = report(files, results)
        print(f"{len(files)} files, {time.monotonic() - begin:.0f} s, {'ok' if well else 'NOT ok'}")
    put(table.getvalue())  # before anything else can fail
    if args.log:
        keep_logs(args.log, results)
    if args.update:
        update_list(counts, args.expected)
    return 0 if well else 1


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; return the exit status."""
    args = parsed(arguments)
    try:
        with os_errors("the tests cannot be run"):
            return work(args)
    except RewriterError as error:
        say(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))
