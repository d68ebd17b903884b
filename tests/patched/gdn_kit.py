"""Layers of gated delta nets with stand-ins for their projections and kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from patched_kit import fresh, pristine
from torch import nn
from vllm.forward_context import ForwardContext, override_forward_context
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.models import qwen3_next
from vllm.utils import torch_utils

HK, HV, DK, DV = 2, 4, 8, 16
QKV = 2 * HK * DK + HV * DV
A_LOG, DT_BIAS = torch.linspace(-1, 1, HV), torch.linspace(0, 1, HV)
_VISION = "vllm.model_executor.models.qwen3_vl"
#: What Qwen3.5 takes from the module of its vision part, which wants torchvision.
_FROM_VISION = (
    "Qwen3_VisionTransformer",
    "Qwen3VLDummyInputsBuilder",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMultiModalProcessor",
    "Qwen3VLProcessingInfo",
)


def qwen3_5() -> ModuleType:
    """The edited module of Qwen3.5, without its vision part."""
    vision = ModuleType(_VISION)
    for name in _FROM_VISION:
        setattr(vision, name, type(name, (), {"packed_modules_mapping": {}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, _VISION, vision)
        return fresh("vllm.model_executor.models.qwen3_5")


def upstream(base: Path) -> ModuleType:
    """The pristine module of Qwen3-Next."""
    with _registered_already():
        return pristine(base, "vllm/model_executor/models/qwen3_next.py")


def edited() -> ModuleType:
    """The edited module once more, for a test that exchanges its kernels."""
    with _registered_already():
        return fresh(qwen3_next.__name__)


@contextmanager
def _registered_already() -> Iterator[None]:
    """Operators and layers have the names of those of the module that was imported first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_utils, "direct_register_custom_op", lambda **keywords: None)
        patch.setattr(CustomOp, "register", lambda name: lambda cls: cls)
        yield


def layer(cls: type, prefix: str = "layers.0", hk: int = HK, **fields: Any) -> nn.Module:
    """A layer of one rank; what a test does not give it has it lacks."""
    made = cls.__new__(cls)
    nn.Module.__init__(made)
    defaults = {
        "prefix": prefix,
        "tp_size": 1,
        "num_k_heads": hk,
        "num_v_heads": HV,
        "head_k_dim": DK,
        "head_v_dim": DV,
        "key_dim": hk * DK,
        "value_dim": HV * DV,
    }
    for name, value in {**defaults, **fields}.items():
        setattr(made, name, value)
    return made


@contextmanager
def step(layers: Iterable[nn.Module], metadata: object) -> Iterator[None]:
    """A forward pass: the same metadata for each layer, or None for the profile run."""
    by_name = {layer.prefix: layer for layer in layers}
    context = ForwardContext(
        no_compile_layers=by_name,
        attn_metadata=metadata if metadata is None else dict.fromkeys(by_name, metadata),
        slot_mapping={},
        virtual_engine=0,
    )
    with override_forward_context(context):
        yield


def delta_rule(q, k, v, g, beta, state) -> tuple[torch.Tensor, torch.Tensor]:
    """One sequence, q and k [T, H, K], v [T, HV, V], g and beta [T, HV], from state [HV, V, K].

    Returns the outputs [T, HV, V] and the state after each token [T, HV, V, K].
    """
    q, k = (F.normalize(x.float(), dim=-1).repeat_interleave(HV // HK, dim=1) for x in (q, k))
    outputs, states = [], []
    for t in range(len(v)):
        state = state * g[t].exp()[:, None, None]
        update = (v[t] - torch.einsum("hvk,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + update[:, :, None] * k[t][:, None, :]
        outputs.append(torch.einsum("hvk,hk->hv", state, q[t]) * DK**-0.5)
        states.append(state)
    return torch.stack(outputs), torch.stack(states)


def gates(A_log, a, b, dt_bias) -> tuple[torch.Tensor, torch.Tensor]:
    return -A_log.exp() * F.softplus(a.float() + dt_bias), b.sigmoid()


class Kernels:
    """In the places of the kernels, on whole sequences; the convolution passes its input on."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def update(self, x: torch.Tensor, *args: object, **keywords: object) -> torch.Tensor:
        self.rows.append(len(x))
        if keywords["validate_data"]:
            assert len(x) == len(keywords["conv_state_indices"])
        return x

    def prefill(self, x: torch.Tensor, *args: object, **keywords: object) -> torch.Tensor:
        self.rows.append(x.size(1))
        return x

    def gating(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x[None] for x in gates(*given))

    def recurrent(self, A_log, a, b, dt_bias, q, k, v, initial_state, cu_seqlens, **rest):
        """As vLLM's kernel does, a and b are read from the front, for as many rows as q has."""
        g, beta = gates(A_log, a, b, dt_bias)
        out = torch.full_like(v, torch.nan)
        for n, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            rows = slice(begin, end)
            lines = rest["ssm_state_indices"][n].reshape(-1)
            accepted = rest.get("num_accepted_tokens")
            state = initial_state[lines[0 if accepted is None else accepted[n] - 1]]
            one = q[0, rows], k[0, rows], v[0, rows], g[rows], beta[rows], state
            out[0, rows], states = delta_rule(*one)
            initial_state[lines[: len(states)].long()] = states
        return out, initial_state

    def chunked(self, q, k, v, g, beta, initial_state, cu_seqlens, **rest):
        out, last = torch.full_like(v, torch.nan), initial_state.clone()
        for n, (begin, end) in enumerate(pairwise(cu_seqlens.tolist())):
            rows = slice(begin, end)
            one = (x[0, rows] for x in (q, k, v, g, beta))
            out[0, rows], states = delta_rule(*one, initial_state[n])
            last[n] = states[-1]
        return out, last


def core(module: ModuleType, states: torch.Tensor) -> tuple[nn.Module, Kernels]:
    """A layer of a module whose `_forward_core` runs, on states [lines, HV, DV, DK]."""
    kernels = Kernels()
    for name, stand_in in {
        "causal_conv1d_fn": kernels.prefill,
        "causal_conv1d_update": kernels.update,
        "fused_gdn_gating": kernels.gating,
        "fused_sigmoid_gating_delta_rule_update": kernels.recurrent,
    }.items():
        setattr(module, name, stand_in)
    made = layer(
        module.Qwen3NextGatedDeltaNet,
        enable_packed_recurrent_decode=False,
        kv_cache=[(torch.zeros(len(states), 3, QKV), states)],
        conv1d=SimpleNamespace(weight=torch.zeros(QKV, 1, 4), bias=None),
        activation="silu",
        A_log=A_LOG,
        dt_bias=DT_BIAS,
        chunk_gated_delta_rule=kernels.chunked,
    )
    return made, kernels
