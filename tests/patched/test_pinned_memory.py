"""Host memory is pinned only where the platform can: here it cannot, and torch refuses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from patched_kit import pristine
from platform_kit import on_platform
from source_scan import functions
from vllm.utils import platform_utils
from vllm.v1.structured_output import utils
from vllm.v1.worker.gpu import buffer_utils, structured_outputs
from vllm.v1.worker.gpu.sample import penalties

RUNNER = "v1/worker/gpu"
#: Those that still pin without a question, and do not run where it is not possible.
UNASKED = {
    ("distributed/kv_transfer/kv_connector/v1/p2p/tensor_memory_pool.py", "TensorMemoryPool"),
    ("model_executor/layers/attention/mla_attention.py", "MLACommonMetadataBuilder"),
    ("model_executor/offloader/prefetch.py", "_CpuParamOffloader"),
    ("v1/attention/backends/mla/flashmla_sparse.py", "FlashMLASparseMetadataBuilder"),
    ("v1/attention/backends/rocm_aiter_fa.py", "AiterFlashAttentionMetadataBuilder"),
    (f"{RUNNER}/buffer_utils.py", "UvaBuffer"),  # made only where there is UVA
}


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    """A platform without pinned memory; the answers are kept, so they are forgotten twice."""
    questions = (platform_utils.is_pin_memory_available, platform_utils.is_uva_available)
    for question in questions:
        question.cache_clear()
    with on_platform("cpu"):
        yield
    for question in questions:
        question.cache_clear()


def pins(function: ast.AST) -> bool:
    return any(
        isinstance(node, ast.keyword)
        and node.arg == "pin_memory"
        and isinstance(node.value, ast.Constant)
        and node.value.value is True
        for node in ast.walk(function)
    )


def test_nobody_else_pins_without_asking(installed) -> None:
    found = functions(installed.site / "vllm", ("pin_memory=True",))
    assert {(file, scope.split(".")[0]) for file, scope, f in found if pins(f)} == UNASKED


def masked(module: ModuleType) -> torch.Tensor:
    """The second of three requests may have the tokens 0 and 2 only."""
    logits = torch.zeros(3, 32)
    module.apply_grammar_bitmask(
        SimpleNamespace(scheduled_spec_decode_tokens={}),
        SimpleNamespace(
            grammar_bitmask=np.array([[0b101]], dtype=np.int32),
            structured_output_request_ids=["b"],
        ),
        SimpleNamespace(req_ids=["a", "b", "c"]),
        logits,
    )
    return logits


def test_bitmask_of_some_requests(base) -> None:
    logits = masked(utils)
    assert (logits[[0, 2]] == 0).all()
    assert logits[1].isfinite().nonzero().flatten().tolist() == [0, 2]
    theirs = pristine(base.root, "vllm/v1/structured_output/utils.py")
    with pytest.raises(RuntimeError, match="pin"):
        masked(theirs)


class Kernel:
    """Stands in for a kernel, and keeps what it was launched with."""

    def __getitem__(self, grid: tuple[int, ...]) -> Kernel:
        return self

    def __call__(self, *args: object, **kwargs: object) -> None:
        self.args = args


def test_staged_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel()
    monkeypatch.setattr(buffer_utils, "_apply_write_kernel", kernel)
    tensor = buffer_utils.StagedWriteTensor((4, 8), torch.int32, torch.device("cpu"))
    tensor.stage_write(2, 1, [5, 6, 7])
    tensor.apply_write()
    assert kernel.args[4].tolist() == [5, 6, 7] and not kernel.args[4].is_pinned()


@pytest.mark.parametrize("can", [True, False])
@pytest.mark.parametrize("module", [buffer_utils, penalties, structured_outputs, utils])
def test_platform_is_asked_at_the_call(monkeypatch: pytest.MonkeyPatch, module, can) -> None:
    asked = []

    class Made(Exception):
        pass

    def make(*args: object, pin_memory: bool, **kwargs: object) -> None:
        asked.append(pin_memory)
        raise Made

    monkeypatch.setattr(module, "is_pin_memory_available", lambda: can)
    calls = {
        buffer_utils: ("async_tensor_h2d", staged),
        penalties: ("async_tensor_h2d", penalised),
        structured_outputs: ("torch", worker_masked),
        utils: ("torch", lambda: masked(utils)),
    }
    name, call = calls[module]
    stand_in = make
    if name == "torch":
        stand_in = SimpleNamespace(**vars(torch) | {"tensor": make})
    monkeypatch.setattr(module, name, stand_in)
    with pytest.raises(Made):
        call()
    assert asked == [can]


def staged() -> None:
    tensor = buffer_utils.StagedWriteTensor(4, torch.int32, torch.device("cpu"))
    tensor.stage_write_elem(1, 5)
    tensor.apply_write()


def penalised() -> None:
    states = object.__new__(penalties.PenaltiesState)
    states._new_penalties_reqs, states.device = [1], torch.device("cpu")
    states.apply_staged_writes()


def worker_masked() -> None:
    worker = object.__new__(structured_outputs.StructuredOutputsWorker)
    worker.copy_stream, worker.device = None, torch.device("cpu")
    worker.grammar_bitmask = torch.zeros(4, 1, dtype=torch.int32)
    worker.logits_indices = torch.zeros(4, dtype=torch.int32)
    batch = SimpleNamespace(req_ids=["a"], cu_num_logits_np=np.array([0, 1]))
    with on_platform("cpu", structured_outputs) as platform:
        platform.stream = lambda stream: nullcontext()
        worker.apply_grammar_bitmask(
            torch.zeros(1, 32), batch, ["a"], np.array([[1]], dtype=np.int32)
        )
