"""The manifest inside the wheel and the notice of changes: what was edited, by what, in which base.

`ascend_runtime/manifest.py` reads what this module writes; `SCHEMA` grows when an old reader would
misread a new manifest.
"""

from __future__ import annotations

import hashlib
import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rewriter.base import Base
from rewriter.errors import RewriterError
from rewriter.metadata import BaseMetadata
from rewriter.outcome import Outcome, Result
from rewriter.transform import Transform

SCHEMA = 1
#: Beside the module that reads it: found whatever the distribution is called.
PATH = "ascend_runtime/manifest.json"


def manifest(
    base: Base,
    results: Sequence[Result],
    transforms: Sequence[Transform],
    files: Mapping[str, bytes],
    *,
    version: str,
    project_version: str,
) -> bytes:
    """Return the manifest: versions, base, transforms, and the sha256 of each file.

    `version` is that of the wheel; `files` is all that the wheel holds outside its
    dist-info, but the manifest itself. Raises RewriterError for a name that is not UTF-8.
    """
    for name in (base.file or "", *files):
        _check_name(name)
    known = {transform.id: transform for transform in transforms}
    data = {
        "schema": SCHEMA,
        "project": project_version,
        "version": version,
        "base": base.facts,
        "transforms": [_entry(result, known.get(result.id)) for result in results],
        "files": {path: hashlib.sha256(files[path]).hexdigest() for path in sorted(files)},
    }
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise RewriterError(
            f"the base has a file name that is not UTF-8, {name!a}; rename that file"
        ) from None


def _entry(result: Result, transform: Transform | None) -> dict[str, Any]:
    return {
        "id": result.id,
        "seed": list(transform.seeds) if transform else [],
        "outcome": str(result.outcome),
        "upstream": str(transform.upstream) if transform else "",
        "files": [change.path for change in result.files],
        "added": sum(change.added for change in result.files),
        "removed": sum(change.removed for change in result.files),
    }


def notice(
    base: Base,
    metadata: BaseMetadata,
    results: Sequence[Result],
    transforms: Sequence[Transform],
    project_version: str,
) -> bytes:
    """Return the NOTICE: which transforms changed which files of vLLM (Apache-2.0, section 4b)."""
    titles = {transform.id: transform.title for transform in transforms}
    applied = [result for result in results if result.outcome is Outcome.APPLIED]
    head = (
        f"This distribution is vLLM {base.version} with changes, and the package ascend_runtime. "
        "Both are under the Apache License, version 2.0, in the file LICENSE. It is not published "
        f"by the vLLM project. vllm-ascend-rewriter {project_version} made the changes listed "
        "here; files that are not listed are as they were in the source."
    )
    lines = [*textwrap.wrap(head, 80), ""]
    for result in applied:
        title = titles.get(result.id, "")
        lines += [f"{result.id}: {title}" if title else result.id]
        lines += [f"    changed {change.path}" for change in result.files]
        lines.append("")
    if not applied:
        lines += ["No file was changed.", ""]
    text = "\n".join(lines).encode()
    return text + b"vLLM's own notice:\n\n" + metadata.notice if metadata.notice else text
