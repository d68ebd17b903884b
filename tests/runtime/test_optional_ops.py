"""Operators that may be absent."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
import torch

from ascend_runtime.optional_ops import MissingOp, overload


@pytest.fixture
def library() -> Iterator[torch.library.Library]:
    library = torch.library.Library("optional_ops_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("twice", lambda x: 2 * x, "CPU")
    yield library
    library._destroy()


def test_operator_that_is_there_is_the_very_object(library: torch.library.Library) -> None:
    twice = overload("optional_ops_test", "twice")
    assert twice is torch.ops.optional_ops_test.twice.default
    assert overload("optional_ops_test", "twice", "out") is torch.ops.optional_ops_test.twice.out
    assert twice(torch.tensor([3])).item() == 6
    assert overload("aten", "add", "Tensor") is torch.ops.aten.add.Tensor


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (("no_such_extension", "rms_norm"), "no_such_extension::rms_norm.default"),
        (("optional_ops_test", "thrice"), "optional_ops_test::thrice.default"),
        (("optional_ops_test", "twice", "no_such"), "optional_ops_test::twice.no_such"),
    ],
)
def test_call_of_a_missing_operator_names_it(library, arguments, name: str) -> None:
    missing = overload(*arguments)
    assert isinstance(missing, MissingOp)
    with pytest.raises(RuntimeError, match=f"the operator {name} is not in this build"):
        missing(torch.ones(1), epsilon=1e-6)
    assert name in repr(missing)


def test_looking_leaves_nothing_behind() -> None:
    overload("another_extension", "rms_norm")
    assert not hasattr(torch.ops.another_extension, "rms_norm")


def test_missing_operator_behaves_as_one_where_it_is_not_called() -> None:
    missing, other = (overload("no_such_extension", name) for name in ("a", "b"))
    assert missing
    assert missing.default is missing
    assert missing == missing
    assert missing != other
    assert {missing: 1, other: 2}[missing] == 1
    assert pickle.loads(pickle.dumps(missing)).name == missing.name


def test_operator_registered_later_is_found_later() -> None:
    assert isinstance(overload("late_extension", "nothing"), MissingOp)
    library = torch.library.Library("late_extension", "DEF")
    library.define("nothing(Tensor x) -> Tensor")
    assert overload("late_extension", "nothing") is torch.ops.late_extension.nothing.default
    library._destroy()
