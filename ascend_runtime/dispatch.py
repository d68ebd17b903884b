"""Choose at each call who does an operation: a vendor's operator, our kernel, plain torch, or vLLM.

`op` decorates a function of vLLM, `kernel` one of its Triton kernels. The device of the first
tensor among the arguments decides:

* `npu`: the first implementation in `operations` whose needs are met, that has the chip, and that
  fits the arguments; the last one is the plain torch reference, of which a warning tells once;
* `cpu`: the reference;
* anything else: vLLM's own code.

Where torch is built for CUDA, HIP or XPU, the decorators return what they were given. A choice can
be forced, for all operations, those of a topic or one, by `override` or the environment variable
ASCEND_RUNTIME_IMPL: `reference`, or `conv=reference,rejection.greedy=upstream`. What is compiled by
torch.compile keeps the choice that held when it was compiled.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Final

import torch

from ascend_runtime import device
from ascend_runtime.log import logger
from ascend_runtime.operations import KINDS, OPERATIONS, Implementation, Operation

_CHOICES: Final = ("upstream", *KINDS)
_log = logger(__name__)
#: What `override` forces, innermost first.
_overrides: tuple[dict[str, str], ...] = ()

Function = Callable[..., Any]
#: Ways to do an operation, in order: a test of the arguments (None: no test), and the function.
_Ways = tuple[tuple[Function | None, Function], ...]


def op(name: str) -> Callable[[Function], Function]:
    """Decorate the function of vLLM that does the operation `name` on a GPU.

    Must be the outermost decorator. ValueError if there is no such operation.
    """
    operation = _operation(name)

    def decorate(function: Function) -> Function:
        if _gpu_build():
            return function
        select = _selector(operation, function)

        @functools.wraps(function)
        def dispatched(*args: Any, **kwargs: Any) -> Any:
            return select(args, kwargs)(*args, **kwargs)

        return dispatched

    return decorate


def kernel(name: str) -> Callable[[Any], Any]:
    """Decorate the Triton kernel of vLLM that does the operation `name` on a GPU.

    Must be the outermost decorator. `kernel[grid](...)` goes on working; an implementation of ours
    gets the arguments without the grid. ValueError if there is no such operation.
    """
    operation = _operation(name)

    def decorate(jitted: Any) -> Any:
        return jitted if _gpu_build() else _Kernel(operation, jitted)

    return decorate


class _Kernel:
    """Stands for a Triton kernel; what it does not know is asked of the kernel itself."""

    def __init__(self, operation: Operation, jitted: Any) -> None:
        self._jitted = jitted
        self._select = _selector(operation, self._upstream)

    def __getitem__(self, grid: Any) -> Function:
        def launch(*args: Any, **kwargs: Any) -> Any:
            way = self._select(args, kwargs)
            if way == self._upstream:
                return self._jitted[grid](*args, **kwargs)
            return way(*args, **kwargs)

        return launch

    def _upstream(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("a Triton kernel is launched with a grid")

    def __getattr__(self, name: str) -> Any:
        if name == "_jitted":  # a copy that is being made has none yet
            raise AttributeError(name)
        return getattr(self._jitted, name)


@contextmanager
def override(choice: str, *names: str) -> Iterator[None]:
    """Force a choice for some operations or topics, or for all, on every device and thread.

    The innermost override that says something of an operation holds, and any of them before
    ASCEND_RUNTIME_IMPL; within each of these, the closest name.

    Args:
        choice: "upstream" (vLLM's own code), "vendor", "kernel" or "reference".
        names: operations (`gdn.packed_decode`) or topics (`gdn`); none means all.

    An operation that has no such implementation keeps its own choice, unless it is named itself:
    then, and if a name or the choice is unknown, ValueError. What the implementation needs must be
    there: RuntimeError at the call otherwise.
    """
    global _overrides
    chosen = dict.fromkeys(names or ("",), choice)
    _check(chosen, "override")
    _overrides = (chosen, *_overrides)
    try:
        yield
    finally:
        # Those of other threads may have begun after this one.
        _overrides = tuple(one for one in _overrides if one is not chosen)


def choice(name: str, device_type: str) -> str:
    """Say what would be taken on a device: "upstream", or the kind of the first way to try."""
    operation = _operation(name)
    candidates = _candidates(operation, device_type, _forced(operation))
    return candidates[0].kind if candidates else "upstream"


def missing(implementation: Implementation) -> list[str]:
    """List what an implementation needs and is not there."""
    return [need for need in implementation.needs if not _is_there(need)]


def _operation(name: str) -> Operation:
    if name not in OPERATIONS:
        raise ValueError(f"no operation is named {name!r}; there are {', '.join(OPERATIONS)}")
    return OPERATIONS[name]


def _gpu_build() -> bool:
    version = torch.version
    return any(getattr(version, kind, None) for kind in ("cuda", "hip", "xpu"))


def _selector(operation: Operation, upstream: Function) -> Callable[[Any, Any], Function]:
    """Return what finds the function to call from the arguments of a call.

    Dynamo traces it: the choice is a constant to it, and the tests of the arguments are plain code.
    """
    ways: dict[str, _Ways] = {}

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def key_for(device_type: str) -> str:
        forced = _forced(operation)
        candidates = _candidates(operation, device_type, forced)
        # Operators may be loaded, and the chip be known, after the first call.
        key = " ".join((device_type, str(forced), *(one.kind for one in candidates)))
        if key not in ways:
            ways[key] = _ways(candidates) or ((None, upstream),)
            if forced is None and device_type == "npu":
                _warn_if_slow(operation, candidates)
        return key

    def select(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Function:
        for fits, function in ways[key_for(_device_type(args, kwargs))]:
            if fits is None or fits(*args, **kwargs):
                return function
        raise AssertionError("the last way takes everything")

    return select


def _device_type(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            return value.device.type
    return "none"


def _forced(operation: Operation) -> str | None:
    """Return the choice that somebody forced on an operation, if anybody did."""
    environment = os.environ.get("ASCEND_RUNTIME_IMPL")
    if not environment and not _overrides:
        return None
    names = (operation.name, operation.name.split(".")[0], "")
    kinds = {"upstream", *(one.kind for one in operation.implementations)}
    for table in (*_overrides, _read(environment) if environment else {}):
        for name in names:
            if table.get(name) in kinds:
                return table[name]
    return None


@functools.cache
def _read(text: str) -> dict[str, str]:
    """Read ASCEND_RUNTIME_IMPL."""
    chosen = {}
    for item in text.rstrip(" ").removesuffix(",").split(","):
        name, _, choice = item.strip().rpartition("=")
        chosen[name.strip()] = choice.strip()
    _check(chosen, f"ASCEND_RUNTIME_IMPL={text}")
    return chosen


def _check(chosen: dict[str, str], where: str) -> None:
    topics = {name.split(".")[0] for name in OPERATIONS}
    for name, choice in chosen.items():
        if choice not in _CHOICES:
            raise ValueError(f"{where}: {choice!r} must be one of {', '.join(_CHOICES)}")
        if name and name not in topics and name not in OPERATIONS:
            raise ValueError(f"{where}: there is no operation or topic {name!r}")
        if name in OPERATIONS and choice != "upstream":
            kinds = [one.kind for one in OPERATIONS[name].implementations]
            if choice not in kinds:
                raise ValueError(f"{where}: {name} has only {', '.join(kinds)} and upstream")


def _candidates(operation: Operation, device_type: str, forced: str | None) -> list[Implementation]:
    """List the implementations to try in turn; the last takes all arguments. None: upstream's."""
    if forced == "upstream":
        return []
    if forced is not None:
        found = [one for one in operation.implementations if one.kind == forced]
        lacks = [lack for one in found for lack in missing(one)]
        if lacks:
            raise RuntimeError(f"{operation.name}: its {forced} needs {', '.join(lacks)}")
        takes_all = found[-1].fits is None
        return [*found, *(() if takes_all else operation.implementations[-1:])]
    if device_type != "npu":
        return [operation.implementations[-1]] if device_type == "cpu" else []
    soc = device.soc_name()
    return [
        one
        for one in operation.implementations
        if (soc in one.socs or one.socs == device.SOCS) and not missing(one)
    ]


def _warn_if_slow(operation: Operation, ways: list[Implementation]) -> None:
    """Tell of an operation for an NPU that has only its reference here."""
    if ways[0].kind == "reference" and len(operation.implementations) > 1:
        lacks = [lack for one in operation.implementations for lack in missing(one)]
        lack = f"there is no {', '.join(lacks)}"
        why = lack if lacks else f"no other runs on {device.soc_name()}"
        _log.warning("%s runs as its plain torch reference, which is slow: %s", operation.name, why)


def _ways(candidates: list[Implementation]) -> _Ways:
    ways = []
    for one in candidates:
        fits = _load(one.fits) if one.fits else None
        ways.append((fits, _load(one.function)))
        if fits is None:
            break
    return tuple(ways)


def _load(target: str) -> Function:
    module, _, name = target.partition(":")
    function: Function = getattr(import_module(module), name)
    return function


def _is_there(need: str) -> bool:
    return _has_triton() if need == "triton" else _operator(need) is not None


def _operator(name: str) -> Any:
    """Find an operator by its dotted name, in modules that are loaded; None if it is not there."""
    root, *path = name.split(".")
    found: Any = sys.modules.get(root)
    for part in path:
        found = getattr(found, part, None)
    return found


@functools.cache
def _has_triton() -> bool:
    """Whether Triton is installed and has a device, or runs its kernels in its interpreter."""
    try:
        backends = import_module("triton.backends").backends
    except Exception:  # absent, or broken
        return False
    if os.environ.get("TRITON_INTERPRET", "0") not in ("0", ""):
        return True
    return any(one.driver.is_active() for one in backends.values())
