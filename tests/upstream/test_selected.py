"""vLLM's own tests, from its sdist, have the same outcomes on the patched tree as on the pristine.

The whole list is run by ci/upstream_tests.py, and here where slow tests are wanted; by default a
few files that take little time and that the edits touch most.
"""

from __future__ import annotations

import pytest

from ci.upstream.expected import faults, read_list
from ci.upstream.ground import TREES, Ground, lay
from ci.upstream_tests import Results, run_all

FILES = {file.path: file for file in read_list()}
QUICK = [
    "tests/v1/core/test_scheduler.py",
    "tests/v1/core/test_async_scheduler.py",
    "tests/tool_parsers/test_glm4_moe_tool_parser.py",
    "tests/reasoning/test_minimax_m2_reasoning_parser.py",
]


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return lay(tmp_path_factory.mktemp("ground"), list(FILES), print)


@pytest.fixture(scope="module")
def quick(ground: Ground) -> Results:
    """The quick files, all in one process on each tree."""
    return run_all(ground, [FILES[path] for path in QUICK], together=True, say=print)


@pytest.mark.parametrize("path", QUICK)
def test_quick_file(quick: Results, path: str) -> None:
    assert faults(FILES[path], *(quick[tree][path] for tree in TREES)) == []


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_whole_list(ground: Ground) -> None:
    results = run_all(ground, list(FILES.values()), say=print)
    wrong = {
        path: faults(file, *(results[tree][path] for tree in TREES)) for path, file in FILES.items()
    }
    assert {path: lines for path, lines in wrong.items() if lines} == {}
