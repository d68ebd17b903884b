"""A tiny tree laid out as vLLM's, for tests that do not depend on the real one."""

from __future__ import annotations

from pathlib import Path

_PYPROJECT = """\
[project]
name = "vllm"
authors = [{name = "vLLM Team"}]
description = "small"
readme = "README.md"
requires-python = ">=3.10,<3.14"
classifiers = ["Intended Audience :: Developers"]
dynamic = ["version", "dependencies", "optional-dependencies"]
[project.scripts]
vllm = "vllm.cli:main"
[project.entry-points."vllm.general_plugins"]
small = "vllm.cli:main"
"""
_SETUP = 'from setuptools import setup\nsetup(extras_require={"bench": ["six >= 1"], "old": []})\n'


def write_small_tree(root: Path) -> Path:
    """Write a tree laid out as vLLM's: package, odd data files, pyproject, requirements, setup."""
    files = {
        "vllm/__init__.py": "OWNER = 'vllm'\n",
        "vllm/_version.py": "__version__ = version = '0.18.0'\n",
        "vllm/logger.py": "OWNER = 'vllm'\n",
        "vllm/cli.py": "def main(): print('ran')\n",
        'vllm/configs/E=8,N=64,name="x".json': "{}",
        "vllm/flash/.gitkeep": "",
        "vllm/.hidden/inner/deep.txt": "deep",
        "vllm/templates/a.jinja": "{{ é }}",
        "vllm/__pycache__/cli.cpython-311.pyc": "stale",
        "pyproject.toml": _PYPROJECT,
        "setup.py": _SETUP,
        "requirements/common.txt": "# why\nregex # because\nsix>=1.16; python_version > '3.11'\n",
        "LICENSE": "Apache License\n",
        "README.md": "# vLLM\n\nName: not a header\nVersion: 9\n",
    }
    for path, text in files.items():
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, "utf-8")
    return root
