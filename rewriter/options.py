"""The options of `build_patched_vllm.py`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rewriter import __version__
from rewriter.base import DEFAULT_VERSION
from rewriter.errors import ExitStatus

_EPILOG = """\
exit status: 0 all is well; 1 an edit does not fit the base (nothing is built); 2 bad input or a
fault of the machine, said in one line; 130 interrupted. Nothing half-written is left in any case.
"""


class _Parser(argparse.ArgumentParser):
    """Bad options get one line, as any bad input."""

    def error(self, message: str) -> NoReturn:
        self.exit(int(ExitStatus.BAD_INPUT), f"error: {message}; --help lists the options\n")


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _word(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("the value is empty")
    return text


#: What has no meaning where nothing is edited, and where nothing is built.
_BASE = ("vllm", "source", "base_version", "allow_unknown_base")
_BUILD = ("out", "no_local_label")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; ends the process (status 2) if an option is wrong or has no use."""
    p = parser()
    args = p.parse_args(argv)
    modes = {
        "--list": args.list,
        "--explain": args.explain is not None,
        "--check": args.check,
        "--diff": args.diff is not None,
        "--tree": args.tree is not None,
        "--compare": args.compare is not None,
        "--clean-cache": args.clean_cache,
    }
    mode = next((name for name, chosen in modes.items() if chosen), None)
    useless: tuple[str, ...] = _BUILD if mode else ()
    if mode in ("--list", "--explain", "--clean-cache"):
        useless += _BASE
    for name in useless:
        if getattr(args, name):
            p.error(f"--{name.replace('_', '-')} has no meaning with {mode}")
    return args


def parser() -> argparse.ArgumentParser:
    """Return the parser."""
    p = _Parser(
        prog="build_patched_vllm.py",
        description="Edit vLLM's sources for Ascend NPUs and pack them as wheels and patches.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--version", action="version", version=__version__)
    base = p.add_argument_group("the base")
    base.add_argument(
        "--vllm",
        metavar="X.Y.Z",
        type=_word,
        help=f"vLLM release to download (default {DEFAULT_VERSION})",
    )
    base.add_argument(
        "--source",
        metavar="PATH",
        type=_word,
        help="an sdist, an unpacked tree, a git checkout or a pure-Python wheel instead",
    )
    base.add_argument(
        "--base-version",
        metavar="X.Y.Z",
        type=_word,
        help="the version of a tree that does not tell its own",
    )
    base.add_argument(
        "--allow-unknown-base",
        action="store_true",
        help="go on with a release whose sha256 is not known here",
    )
    choice = p.add_argument_group("the transforms")
    choice.add_argument(
        "--only", metavar="ID", action="append", default=[], help="just these (may be repeated)"
    )
    choice.add_argument(
        "--skip", metavar="ID", action="append", default=[], help="all but these (may be repeated)"
    )
    choice.add_argument(
        "--transforms",
        metavar="DIR",
        action="append",
        default=[],
        type=_path,
        help="a folder of your own transforms, used beside ours",
    )
    out = p.add_argument_group("the output")
    out.add_argument(
        "--out", metavar="DIR", type=_path, help="where the artefacts go (default dist)"
    )
    out.add_argument(
        "--no-local-label",
        action="store_true",
        help="leave the local version label away, for an index that refuses labels",
    )
    out.add_argument("--json", action="store_true", help="print the result as one JSON object")
    out.add_argument("--quiet", action="store_true", help="no progress lines")
    mode = p.add_argument_group("instead of building").add_mutually_exclusive_group()
    mode.add_argument("--list", action="store_true", help="list the transforms")
    mode.add_argument("--explain", metavar="ID", type=_word, help="say all about one transform")
    mode.add_argument(
        "--check", action="store_true", help="try the edits; the exit status tells the result"
    )
    mode.add_argument(
        "--diff",
        metavar="ID",
        nargs="?",
        const="",
        help="print the edits, or those of one transform, as a diff",
    )
    mode.add_argument("--tree", metavar="DIR", type=_path, help="write the edited tree, no wheel")
    mode.add_argument(
        "--compare",
        metavar="OLD_REPORT",
        type=_path,
        help="try the edits and say what is different from an older report.json",
    )
    mode.add_argument("--clean-cache", action="store_true", help="empty the download cache")
    return p
