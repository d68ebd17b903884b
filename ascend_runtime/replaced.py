"""Classes of vLLM's layers, and what an out-of-tree platform has vLLM make in their places."""

from __future__ import annotations

from importlib import import_module


def stands_for(cls: type, wanted: type) -> bool:
    """Whether it is a class of vLLM, or the one that a platform registered in its place."""
    registered = import_module("vllm.model_executor.custom_op").op_registry_oot
    return cls in (wanted, registered.get(wanted.__name__))
