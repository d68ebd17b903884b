"""Runs vLLM's Triton kernels on host memory where Triton is not installed.

There `triton.jit` gives the plain function back, and here are numpy's means for the part of
`triton.language` that the kernels under test use: integers keep their widths, and every access is
checked to be within the tensors that the kernel was given or the test names.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch


class Value(np.ndarray):
    """A number or a block of numbers in a kernel."""

    def to(self, kind: object) -> Value | Pointer:
        if isinstance(kind, PointerType):
            return Pointer(self.astype(np.int64), kind.dtype)
        return self.astype(kind)


def value(number: object, dtype: object = None) -> Value:
    return np.asarray(number, dtype).view(Value)


class PointerType:
    def __init__(self, dtype: object) -> None:
        self.dtype = np.dtype(dtype)


class Pointer:
    """One or more addresses of elements of a type."""

    def __init__(self, address: np.ndarray, dtype: np.dtype) -> None:
        self.address = address
        self.dtype = dtype

    def __add__(self, elements: object) -> Pointer:
        return Pointer(
            self.address + np.asarray(elements, np.int64) * self.dtype.itemsize, self.dtype
        )

    def __sub__(self, elements: object) -> Pointer:
        return self + -np.asarray(elements, np.int64)


class Language:
    """The `tl` of one kernel; `program` and `programs` are set for each program."""

    uint8, int32, int64, float32 = np.uint8, np.int32, np.int64, np.float32
    pointer_type = PointerType
    range = range
    where = staticmethod(lambda *a: value(np.where(*a)))
    minimum = staticmethod(lambda *a: value(np.minimum(*a)))

    def __init__(self) -> None:
        self.program: tuple[int, ...] = ()
        self.programs: tuple[int, ...] = ()
        self.memory: list[tuple[int, int]] = []

    def program_id(self, axis: int) -> Value:
        return value(self.program[axis], np.int32)

    def num_programs(self, axis: int) -> Value:
        return value(self.programs[axis], np.int32)

    def arange(self, start: int, end: int) -> Value:
        return value(np.arange(start, end, dtype=np.int32))

    def cast(self, number: Value, kind: object) -> Value | Pointer:
        return number.to(kind)

    def multiple_of(self, what: object, number: int) -> object:
        return what

    def load(self, pointer: Pointer, mask: object = True, other: object = 0) -> Value:
        wanted = np.broadcast_to(np.asarray(mask), pointer.address.shape)
        loaded = np.full(pointer.address.shape, other, pointer.dtype)
        for index, cell in self._cells(pointer, wanted):
            loaded[index] = cell
        return value(loaded)

    def store(self, pointer: Pointer, given: object, mask: object = True) -> None:
        wanted = np.broadcast_to(np.asarray(mask), pointer.address.shape)
        numbers = np.broadcast_to(np.asarray(given), pointer.address.shape)
        for index, cell in self._cells(pointer, wanted):
            cell[...] = numbers[index].astype(pointer.dtype)

    def _cells(self, pointer: Pointer, wanted: np.ndarray) -> Iterator[tuple[object, np.ndarray]]:
        """The memory of the wanted elements: in one piece where they lie in a row."""
        indices = np.flatnonzero(wanted)
        if not len(indices):
            return
        size = pointer.dtype.itemsize
        addresses = pointer.address.reshape(-1)[indices]
        if (np.diff(addresses) == size).all() and pointer.address.ndim == 1:
            yield indices, self._memory(int(addresses[0]), len(indices), pointer.dtype)
            return
        for index, address in zip(indices, addresses, strict=True):
            where = np.unravel_index(index, pointer.address.shape)
            yield where, self._memory(int(address), 1, pointer.dtype)[0:1].reshape(())

    def _memory(self, address: int, count: int, dtype: np.dtype) -> np.ndarray:
        end = address + count * dtype.itemsize
        inside = any(low <= address and end <= high for low, high in self.memory)
        assert inside, f"{self.program}: {count} elements at {address} are in none of the tensors"
        raw = (ctypes.c_char * (end - address)).from_address(address)
        return np.frombuffer(raw, dtype)


class Kernel:
    """A kernel that is launched as Triton's are, one program after the other."""

    def __init__(self, function: object, language: Language, memory: list[torch.Tensor]) -> None:
        self.function = function
        self.language = language
        self.memory = memory
        self.launches: list[tuple[tuple[int, ...], dict]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> object:
        def launch(*arguments: object, **keywords: object) -> None:
            self.launches.append((grid, keywords))
            tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
            self.language.memory = [span(tensor) for tensor in [*tensors, *self.memory]]
            self.language.programs = grid
            given = [self._argument(a) for a in arguments]
            named = {k: v for k, v in keywords.items() if k not in ("num_warps", "num_stages")}
            for self.language.program in itertools.product(*map(range, grid)):
                self.function(*given, **named)

        return launch

    @staticmethod
    def _argument(given: object) -> object:
        if not isinstance(given, torch.Tensor):
            return given
        name = str(given.dtype).removeprefix("torch.")
        return Pointer(np.asarray(given.data_ptr(), np.int64), np.dtype(name))


def span(tensor: torch.Tensor) -> tuple[int, int]:
    """The addresses of all that a tensor's storage holds."""
    start = tensor.untyped_storage().data_ptr()
    return start, start + tensor.untyped_storage().nbytes()


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


@contextmanager
def kernels(
    module: ModuleType, *names: str, memory: tuple[torch.Tensor, ...] = ()
) -> Iterator[dict[str, Kernel]]:
    """Make kernels of a module run; `memory` is what they reach through addresses in tensors."""
    language = Language()
    made = {name: Kernel(getattr(module, name), language, list(memory)) for name in names}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "tl", language)
        patch.setattr(module, "triton", SimpleNamespace(next_power_of_2=next_power_of_2))
        for name, kernel in made.items():
            patch.setattr(module, name, kernel)
        yield made
