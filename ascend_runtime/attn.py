"""What attention on NPUs wants of the second model runner: sizes, dtypes and its metadata class."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch

from ascend_runtime.device import is_npu


class BatchState(enum.IntEnum):
    """What the requests of a batch do, for operators that differ in it."""

    PREFILL_NO_CACHE = 0
    PREFILL_CACHE_HIT = 1
    DECODE_ONLY = 2
    CHUNKED_PREFILL = 3
    SPEC_DECODING = 4


def query_start_loc_extra() -> int:
    """Return how many entries more the query offsets have: 1 on an NPU, for a dummy request."""
    return 1 if is_npu() else 0


def slot_mapping_dtype() -> torch.dtype:
    """Return the dtype of KV cache slots: int32 on an NPU, for the operator that writes; int64."""
    return torch.int32 if is_npu() else torch.int64


_registered: tuple[type, Callable[[int], object]] | None = None


def register_metadata(cls: type | None, state: Callable[[int], object] = BatchState) -> None:
    """Have a subclass of vLLM's CommonAttentionMetadata built on NPUs; None for vLLM's again.

    `cls` is a dataclass. Of the fields `seq_lens_cpu` (int32 on the host, [num_reqs]),
    `attn_state`, and `positions` (the batch's, on the device), those that it has are filled in.
    `state` makes the value of `attn_state` from the number of a `BatchState`.
    """
    global _registered
    if cls is not None and not dataclasses.is_dataclass(cls):
        raise TypeError(f"{cls.__name__} is not a dataclass, so its fields are not known")
    _registered = None if cls is None else (cls, state)


def common_metadata(
    groups: Sequence[Sequence[Any]],
    num_reqs: int,
    query_start_loc: torch.Tensor,
    max_seq_len: int,
    input_batch: Any | None = None,
) -> Callable[..., object]:
    """Return what to call for the metadata of a batch, with the arguments that vLLM's class takes.

    It is vLLM's class itself off NPUs, or if none is registered. `groups` are vLLM's attention
    groups, `query_start_loc` the offsets on the host [num_reqs + 1], `input_batch` the batch, if
    there is one: without it the lengths are `max_seq_len`. Raises TypeError if the registered class
    is no subclass of vLLM's.
    """
    stock = cast("type", import_module("vllm.v1.attention.backend").CommonAttentionMetadata)
    group = next((group for members in groups for group in members), None)
    if _registered is None or group is None or not is_npu():
        return stock
    cls, state = _registered
    if not issubclass(cls, stock):
        raise TypeError(f"{cls.__name__} is registered as attention metadata, but is no subclass")
    config = group.get_metadata_builder(0).vllm_config
    if input_batch is None:
        lengths = torch.full((num_reqs,), max_seq_len, dtype=torch.int32)
        scheduled = query_start_loc.diff()
        drafts = torch.zeros_like(scheduled)
        fields: dict[str, object] = {}
    else:
        lengths = exact_seq_lens(input_batch, num_reqs, config)
        scheduled = torch.from_numpy(input_batch.num_scheduled_tokens)
        drafts = torch.from_numpy(input_batch.cu_num_logits_np).diff() - 1
        fields = {"positions": input_batch.positions}
    real = lengths[: len(scheduled)]  # less the requests that are padding
    fields["seq_lens_cpu"] = lengths
    fields["attn_state"] = state(batch_state(real, scheduled, drafts, config))
    known = {field.name for field in dataclasses.fields(cast("Any", cls))}
    return partial(cls, **{name: value for name, value in fields.items() if name in known})


def exact_seq_lens(input_batch: Any, num_reqs: int, config: Any) -> torch.Tensor:
    """Return the lengths of the sequences of a batch on the host, int32 [num_reqs].

    The batch's own, unless drafts of a step in flight may yet be rejected: then the device is
    waited for.
    """
    bound = input_batch.seq_lens_cpu_upper_bound
    in_flight = config.speculative_config is not None and config.scheduler_config.async_scheduling
    if bound is None or in_flight:
        return cast("torch.Tensor", input_batch.seq_lens[:num_reqs].cpu())
    return cast("torch.Tensor", bound[:num_reqs])


def batch_state(
    seq_lens: torch.Tensor, scheduled: torch.Tensor, drafts: torch.Tensor, config: Any
) -> BatchState:
    """Return the state of a batch; the tensors, on the host, have an entry for each request.

    `seq_lens` includes the `scheduled` tokens, and those include the `drafts`. One token for each
    request is decoding, be it a prompt's only one.
    """
    model, speculative = config.model_config, config.speculative_config
    if model.runner_type == "pooling":
        whole = model.attn_type == "encoder_only"
        return BatchState.PREFILL_NO_CACHE if whole else BatchState.PREFILL_CACHE_HIT
    mtp = speculative is not None and speculative.method == "mtp"
    if (scheduled == 1).all():
        return BatchState.SPEC_DECODING if mtp else BatchState.DECODE_ONLY
    if (seq_lens == scheduled).all():
        return BatchState.PREFILL_NO_CACHE
    if (scheduled - drafts == 1).all():
        return BatchState.SPEC_DECODING if mtp else BatchState.CHUNKED_PREFILL
    chunked = config.scheduler_config.enable_chunked_prefill
    return BatchState.CHUNKED_PREFILL if chunked else BatchState.PREFILL_CACHE_HIT
