"""Downloading vLLM's sdist from wherever the user's own pip would get it, without building it.

pip cannot do this: it builds every sdist for its metadata, and vLLM's wants torch for that. So pip
is asked for its configuration only, and `unearth` does the work of the finder.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from packaging.version import Version
from unearth import Link, PackageFinder
from unearth.errors import HashMismatchError
from unearth.evaluator import Package
from unearth.fetchers import PyPIClient

from rewriter.cache import is_full, no_space, os_errors, sha256_of
from rewriter.errors import RewriterError
from rewriter.pip_config import PipConfig, Say, http_client


def fetch_sdist(
    name: str, version: Version, sha256: str | None, folder: Path, say: Say
) -> tuple[Path, str]:
    """Download the sdist of `version` into `folder`; return the file and its sha256.

    Only a file with the hash `sha256` is taken, unless that is None. Sources are tried one by one,
    and one that fails does not stop the rest. Raises RewriterError, naming what each said.
    """
    config = PipConfig.of_user(say)
    wanted = _Wanted(name, version, sha256, folder.resolve(), config, say)
    sources = [("find-links", url) for url in config.find_links]
    sources += [("index", url) for url in config.indexes]
    if not sources:
        raise RewriterError(
            f"pip's configuration says no-index and names no find-links, so {wanted.title} cannot "
            "be downloaded; give the file by --source"
        )
    with os_errors("the sdist cannot be saved", folder):
        folder.mkdir(parents=True, exist_ok=True)
    reasons: list[str] = []
    with http_client(config) as client:
        for kind, url in sources:
            found = _try_source(client, kind, url, wanted, reasons)
            if found:
                return found
    raise RewriterError(
        f"{wanted.title} cannot be downloaded: {'; '.join(reasons)}; "
        "mend pip's configuration (see pip config list) or give the file by --source"
    )


@dataclass(frozen=True)
class _Wanted:
    name: str
    version: Version
    sha256: str | None
    folder: Path
    config: PipConfig
    say: Say

    @property
    def title(self) -> str:
        return f"the sdist {self.name}-{self.version}.tar.gz"

    def matches(self, package: Package) -> bool:
        return (
            package.link.filename.endswith(".tar.gz")
            and package.version is not None
            and Version(package.version) == self.version
        )


def _try_source(
    client: PyPIClient, kind: str, url: str, wanted: _Wanted, reasons: list[str]
) -> tuple[Path, str] | None:
    """Try one source; None, with one more reason, if it does not have the file."""
    shown = _shown(url, wanted.config)
    before = len(reasons)
    with _unearth_warnings() as warnings:
        try:
            # One finder a source: an unreachable one raises and would hide the others.
            # Requires-Python is no matter here: nothing is installed.
            finder = PackageFinder(
                cast(Any, client),  # its own type does not quite satisfy the finder's protocol
                index_urls=[url] if kind == "index" else [],
                find_links=[url] if kind == "find-links" else [],
                no_binary=[wanted.name],
                ignore_compatibility=True,
            )
            for package in finder.find_all_packages(wanted.name, allow_yanked=True):
                if wanted.matches(package):
                    found = _download(finder, package.link, wanted, reasons, shown)
                    if found:
                        return found
        except RewriterError:
            raise
        except Exception as error:  # whatever a source does wrong, the next one is tried
            if is_full(error):
                raise no_space(f"{wanted.title} cannot be saved", error, wanted.folder) from error
            text = str(error) or type(error).__name__
            reasons.append(f"{shown}: {wanted.config.redact(text)}")
    if len(reasons) == before:
        # The finder tells a missing page or a host that is not trusted by a warning only.
        text = warnings[-1] if warnings else f"it has no {wanted.name}-{wanted.version}.tar.gz"
        text = re.sub(r"^Failed to collect links from \S+: ", "", text)
        if "for not being trusted" in text:
            text = "it is neither https nor named by pip's option trusted-host"
        reasons.append(f"{shown}: {wanted.config.redact(text)}")
    return None


def _download(
    finder: PackageFinder, link: Link, wanted: _Wanted, reasons: list[str], shown: str
) -> tuple[Path, str] | None:
    published = (link.hash_option or {}).get("sha256", [])
    if wanted.sha256 and published and wanted.sha256 not in published:
        reasons.append(f"{shown}: offers one with the sha256 {published[0]}, not {wanted.sha256}")
        return None
    wanted.say(f"downloading {link.filename} from {shown}")
    hashes = {"sha256": [wanted.sha256]} if wanted.sha256 else None
    target = wanted.folder / link.filename
    try:
        got = finder.download(link, wanted.folder, hashes)
    except HashMismatchError as error:
        seen = next(iter(error.actual.values()), "another one")
        expected = wanted.sha256 or "the one its index says"
        reasons.append(f"{shown}: sent a file with the hash {seen}, not {expected}")
        target.unlink(missing_ok=True)
        return None
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    if got != target:  # files of a local folder are verified where they lie
        with os_errors(f"{link.filename} cannot be copied", wanted.folder):
            shutil.copyfile(got, target)
    digest = sha256_of(target)
    if wanted.sha256 not in (None, digest):
        raise RewriterError(f"{link.filename} changed while it was copied; run again")
    return target, digest


@contextmanager
def _unearth_warnings() -> Iterator[list[str]]:
    """Collect what the finder would print to the terminal."""
    caught: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            caught.append(record.getMessage())

    logger = logging.getLogger("unearth")
    handler = Collector(logging.WARNING)
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield caught
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


def _shown(url: str, config: PipConfig) -> str:
    with suppress(ValueError):  # not a URL; redact() copes with anything
        url = Link(url).redacted
    return config.redact(url)
