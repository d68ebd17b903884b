"""Operators of compiled extensions that may be absent."""

from __future__ import annotations

from typing import Any, NoReturn

import torch


class MissingOp:
    """Stands for an operator that the installed extensions do not have.

    It is true, equal only to itself, and its own overload, as an operator would be; calling it
    raises RuntimeError with the operator's qualified name.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def default(self) -> MissingOp:
        """The stand-in itself."""
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise RuntimeError."""
        raise RuntimeError(
            f"the operator {self.name} is not in this build of vLLM: it needs a compiled extension"
        )

    def __repr__(self) -> str:
        """Return the stand-in's own description."""
        return f"<missing operator {self.name}>"


def overload(namespace: str, op: str, overload: str = "default") -> Any:
    """Return `torch.ops.<namespace>.<op>.<overload>`, or a MissingOp if there is none.

    Nothing is added to `torch.ops`, so probing with `hasattr` still tells the truth.
    """
    try:
        return getattr(getattr(getattr(torch.ops, namespace), op), overload)
    except AttributeError:
        return MissingOp(f"{namespace}::{op}.{overload}")
