"""What all layers share: the real vLLM base, and a way to rewrite small trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rewriter.base import DEFAULT_VERSION, Base, open_base
from rewriter.cache import Cache
from rewriter.rewrite import Rewritten, rewrite
from rewriter.transform import Transform

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """vLLM 0.18.0, from the download cache or the user's index."""
    return open_base(
        source=None,
        version=DEFAULT_VERSION,
        base_version=None,
        allow_unknown=False,
        cache=Cache.default(),
        work=tmp_path_factory.mktemp("base"),
        say=print,
    )


@pytest.fixture(scope="session")
def rewrite_base(
    base: Base, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[tuple[Transform, ...]], Rewritten]:
    """Rewrite the real base with the transforms given."""

    def run(transforms: tuple[Transform, ...]) -> Rewritten:
        return rewrite(base, transforms, tmp_path_factory.mktemp("rewrite"))

    return run


@pytest.fixture
def small_base(tmp_path: Path) -> Iterator[Callable[[dict[str, str | bytes]], Base]]:
    """Make a base of a few files."""

    def make(files: dict[str, str | bytes], version: str = "0.18.0") -> Base:
        root = tmp_path / "small"
        (root / "vllm").mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return Base(version=version, sha256="0" * 64, origin="tree", root=root)

    yield make
