"""Builds the wheel once, and lets the tests of this folder import from it, and no others."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from patched_kit import HERE, Installed, Switch, install

_WORK = Path(tempfile.mkdtemp(prefix="patched-vllm-"))
atexit.register(shutil.rmtree, _WORK, ignore_errors=True)
_INSTALLED = install(_WORK)
_SWITCH = Switch(_INSTALLED.site)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """Collect the modules of this folder with the wheel in place."""
    with _switch(collector):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run the tests of this folder with the wheel in place."""
    with _switch(item):
        return (yield)


def _switch(node: pytest.Item | pytest.Collector) -> AbstractContextManager[None]:
    """Both hooks are also called for what is not in this folder."""
    ours = isinstance(node, pytest.Item | pytest.Module) and HERE in node.path.parents
    return _SWITCH.on() if ours else nullcontext()


@pytest.fixture(scope="session")
def installed() -> Installed:
    """The wheel's folder and its report."""
    return _INSTALLED


class Stub(SimpleNamespace):
    """A platform of which a test says what it must answer; to all else `is_...` says no."""

    def __getattr__(self, name: str) -> Callable[[], bool]:
        if name.startswith("is_"):
            return lambda: False
        raise AttributeError(name)


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Stub]:
    """`platform(module, device_type=...)` replaces the module's `current_platform`."""

    def use(module: ModuleType, **answers: object) -> Stub:
        stub = Stub(**answers)
        monkeypatch.setattr(module, "current_platform", stub)
        return stub

    return use
