"""Files that a tool writes when its work is done."""

from __future__ import annotations

import os
from pathlib import Path


def can_be_written(file: Path | None) -> None:
    """Raise OSError if a file cannot be written, before the work begins; nothing is created."""
    if file is None:
        return
    if file.is_dir() or not file.parent.is_dir():
        raise OSError(f"{file} cannot be written: it is a folder, or in none")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise OSError(f"{file} cannot be written: no permission")
