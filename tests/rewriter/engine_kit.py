"""Short ways to make an edit, without and with everything around it."""

from __future__ import annotations

from pathlib import Path

from rewriter.base import Base
from rewriter.change import splice
from rewriter.edit import Edit, Target
from rewriter.outcome import Result
from rewriter.rewrite import Rewritten, rewrite
from rewriter.source import Source
from rewriter.transform import Transform, Upstream

FILE = "vllm/a.py"


def found(code: str | bytes, edit: Edit, scope: str = "f") -> tuple[int, int]:
    """How many places the edit would change, and how many are as they should be."""
    data = code if isinstance(code, bytes) else code.encode()
    places = edit.locate(Source(data).scope(scope))
    return places.places, places.done


def made(code: str | bytes, edit: Edit, scope: str = "f") -> str | bytes:
    """The code with the edit made, before any layout; a second edit must find nothing to do."""
    data = code if isinstance(code, bytes) else code.encode()
    places = edit.locate(Source(data).scope(scope))
    assert places.places == edit.count, places
    result = splice(data, [write for change in places.todo for write in change.writes])
    again = edit.locate(Source(result).scope(scope))
    assert not again.places, result
    assert again.done >= edit.count, result
    return result if isinstance(code, bytes) else result.decode()


def transform(*targets: Target, id: str = "one", after: tuple[str, ...] = (), **more) -> Transform:
    """A transform with these targets."""
    return Transform(
        seed=(),
        tag="Misc",
        vllm=more.pop("vllm", ">=0.18"),
        upstream=Upstream.inappropriate("a test"),
        remove_when="never",
        edits=targets,
        after=after,
        id=id,
        doc="Change something.\n\nA test.",
        **more,
    )


class Tree:
    """A small base, and rewrites of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs = 0

    def write(self, files: dict[str, str | bytes]) -> Base:
        """Make it hold these files beside those that it holds."""
        for path, text in files.items():
            file = self.root / "base" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Base("0.18.0", "0" * 64, "tree", self.root / "base")

    def run(self, files: dict[str, str | bytes], *transforms: Transform) -> Rewritten:
        """Rewrite the tree with these files."""
        base = self.write(files)
        self.runs += 1
        work = self.root / f"work-{self.runs}"
        work.mkdir()
        return rewrite(base, transforms, work)

    def one(self, code: str | bytes, *targets: Target, **more) -> tuple[Result, bytes]:
        """Rewrite one file with one transform; return its result and the file."""
        data = code if isinstance(code, bytes) else code.encode()
        rewritten = self.run({FILE: data}, transform(*targets, **more))
        return rewritten.results[0], rewritten.files.get(FILE, data)


def outcomes(rewritten: Rewritten) -> dict[str, str]:
    """Every transform's outcome in a word."""
    return {result.id: str(result.outcome) for result in rewritten.results}
