"""`torch.npu`: what torch_npu gives under this name, as far as vLLM and torch itself ask for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch

from npu_device.build import extension

_native = extension()

#: What a function may get for a device: nothing or a negative index mean the current one.
AnyDevice = torch.device | str | int | None

current_device: Callable[[], int] = torch.accelerator.current_device_index
device_count: Callable[[], int] = _native.device_count
set_device: Callable[[AnyDevice], None] = torch.accelerator.set_device_index
set_stream: Callable[[torch.Stream], None] = torch.accelerator.set_stream
synchronize: Callable[..., None] = torch.accelerator.synchronize


def _index(device: AnyDevice) -> int:
    """Return the index of a device; ValueError for one of another type."""
    if isinstance(device, str):
        device = torch.device(device)
    if isinstance(device, torch.device):
        if device.type != "npu":
            raise ValueError(f"expected an npu device, got {device}")
        device = device.index
    return current_device() if device is None or device < 0 else device


def init() -> None:
    """Do nothing: the device is ready when it is loaded."""


_lazy_init = init


def is_initialized() -> bool:
    """Whether the device is in use; it is from the start."""
    return True


def is_available() -> bool:
    """Whether there is a device."""
    return True


def _is_in_bad_fork() -> bool:
    return False


def is_bf16_supported() -> bool:
    """Whether bfloat16 works."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the types that torch.autocast may use."""
    return [torch.float16, torch.bfloat16]


def get_device_name(device: AnyDevice = None) -> str:
    """Return the name of a chip that such a device could be."""
    _index(device)
    return "Ascend910B1"


def get_device_properties(device: AnyDevice = None) -> SimpleNamespace:
    """Return name, total_memory (bytes), cube_core_num and vector_core_num of a device."""
    name = get_device_name(device)
    memory = _native.total_bytes()
    return SimpleNamespace(name=name, total_memory=memory, cube_core_num=24, vector_core_num=48)


class device:
    """Context in which another device is the current one."""

    def __init__(self, device: AnyDevice) -> None:
        self._device = _index(device)
        self._before = -1

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._device)

    def __exit__(self, *error: object) -> None:
        set_device(self._before)


class Stream(torch.Stream):
    """A stream of a device, the current one by default; all its work is done at once."""

    def __new__(cls, device: AnyDevice = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Make a new stream, or with stream_id, device_index and device_type an existing one."""
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=torch.device("npu", _index(device)), priority=priority)

    @property
    def npu_stream(self) -> int:
        """The stream's handle, a number."""
        return self.stream_id


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "npu"


class Event(metaclass=_EventType):
    """An event of a device; it has passed as soon as it is recorded.

    Calling the class makes a torch.Event: torch's streams take no subclass of it.
    """

    def __new__(  # type: ignore[misc]
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        """Make an event; only an event with timing tells times."""
        return torch.Event("npu", enable_timing=enable_timing, blocking=blocking)


def current_stream(device: AnyDevice = None) -> torch.Stream:
    """Return the stream that this thread gives work to; torch_npu takes the device by name too."""
    return torch.accelerator.current_stream(device)


def default_stream(device: AnyDevice = None) -> torch.Stream:
    """Return the stream that a thread starts with."""
    privateuse1 = 20
    return Stream(stream_id=0, device_index=_index(device), device_type=privateuse1)


@contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Context in which another stream, and its device, are the current ones."""
    if stream is None:
        yield
        return
    with stream:
        yield


def empty_cache() -> None:
    """Do nothing: freed memory goes back at once."""


def mem_get_info(device: AnyDevice = None) -> tuple[int, int]:
    """Return the free and the total memory of a device, in bytes."""
    total = _native.total_bytes()
    return total - memory_allocated(device), total


def memory_allocated(device: AnyDevice = None) -> int:
    """Return the bytes in use."""
    return _native.usage(_index(device))["bytes"]


def max_memory_allocated(device: AnyDevice = None) -> int:
    """Return the most bytes in use since the start or the last reset."""
    return _native.usage(_index(device))["peak_bytes"]


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: AnyDevice = None) -> None:
    """Let the peak be what is in use now."""
    _native.reset_peak(_index(device))


def memory_stats(device: AnyDevice = None) -> dict[str, int]:
    """Return counts of blocks and bytes, under torch's names."""
    usage = _native.usage(_index(device))
    stats = {
        "allocation.all.current": usage["blocks"],
        "allocation.all.allocated": usage["allocations"],
        "allocation.all.freed": usage["freed"],
        "num_alloc_retries": 0,
        "num_ooms": 0,
    }
    for kind in ("allocated", "reserved", "active"):
        stats[f"{kind}_bytes.all.current"] = usage["bytes"]
        stats[f"{kind}_bytes.all.peak"] = usage["peak_bytes"]
    return stats


def _generator(device: AnyDevice) -> torch.Generator:
    return _native.default_generator(_index(device))


def manual_seed(seed: int) -> None:
    """Seed the random numbers of the current device."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the random numbers of all devices."""
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def initial_seed() -> int:
    """Return the seed of the current device."""
    return _generator(None).initial_seed()


def get_rng_state(device: AnyDevice = None) -> torch.Tensor:
    """Return the state of a device's random numbers, a CPU tensor of bytes."""
    return _generator(device).get_state()


def set_rng_state(state: torch.Tensor, device: AnyDevice = None) -> None:
    """Set the state of a device's random numbers."""
    _generator(device).set_state(state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices."""
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(states: list[torch.Tensor]) -> None:
    """Set the states of all devices."""
    for index, state in enumerate(states):
        set_rng_state(state, index)


def __getattr__(name: str) -> object:
    if name == "default_generators":
        return tuple(map(_generator, range(device_count())))
    raise AttributeError(f"module 'torch.npu' has no attribute {name!r}")
