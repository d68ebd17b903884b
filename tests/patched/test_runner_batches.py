"""W24 and W25a: batches of the V2 runner, with its own kernels run on host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from host_triton import kernels
from platform_kit import KINDS, on_platform
from test_uva_buffers import on
from vllm.v1.core.sched.output import CachedRequestData
from vllm.v1.worker.gpu import block_table, buffer_utils, input_batch
from vllm.v1.worker.gpu.block_table import BlockTables
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_runner import GPUModelRunner
from vllm.v1.worker.gpu.states import RequestState

CPU = torch.device("cpu")
REQUESTS, TOKENS = 8, 32
KERNELS = (
    "_prepare_prefill_inputs_kernel",
    "_prepare_pos_seq_lens_kernel",
    "_combine_sampled_and_draft_tokens_kernel",
    "_expand_idx_mapping_kernel",
    "_post_update_kernel",
)


def buffers(kind: str) -> InputBuffers:
    with on_platform(kind):
        return InputBuffers(REQUESTS, TOKENS, CPU)


# Dummy batches.


@pytest.mark.parametrize("kind", KINDS)
def test_dummy_batch(kind: str) -> None:
    shared = buffers(kind)
    shared.seq_lens.fill_(99)
    dummy = InputBatch.make_dummy(3, 8, shared)
    assert dummy.num_scheduled_tokens.tolist() == [2, 2, 4]
    assert dummy.seq_lens_cpu_upper_bound.tolist() == [2, 2, 4]
    assert dummy.seq_lens_cpu_upper_bound.dtype == torch.int32
    assert dummy.seq_lens.tolist() == [2, 2, 4] and not shared.seq_lens[3:].any()
    offsets = shared.query_start_loc.tolist()
    assert offsets[:4] == [0, 2, 4, 8] and set(offsets[4:]) == {8}
    assert len(offsets) == REQUESTS + (2 if kind == "npu" else 1)
    dummy.num_scheduled_tokens[0] = 7
    assert dummy.seq_lens_cpu_upper_bound[0] == 2  # memory of its own


def test_dummy_batch_is_in_the_persistent_buffers() -> None:
    """A graph records their addresses; copies of the tensors would be gone when it is replayed."""
    shared = buffers("npu")
    dummy = InputBatch.make_dummy(3, 8, shared)
    for name in ("input_ids", "positions", "seq_lens", "query_start_loc"):
        assert getattr(dummy, name).data_ptr() == getattr(shared, name).data_ptr()


def test_subclass_of_the_batch_may_have_fields_of_its_own() -> None:
    @dataclass
    class Extended(InputBatch):
        seq_lens_np: np.ndarray
        attn_state: object = None

    dummy = InputBatch.make_dummy(3, 8, buffers("npu"))
    made = Extended(**vars(dummy), seq_lens_np=dummy.num_scheduled_tokens)
    assert made.seq_lens_cpu_upper_bound is dummy.seq_lens_cpu_upper_bound
    rest = {k: v for k, v in vars(dummy).items() if k != "seq_lens_cpu_upper_bound"}
    assert Extended(**rest, seq_lens_np=None).seq_lens_cpu_upper_bound is None


# Batches of real requests, over several steps.


class Runner:
    """vLLM's runner with all that its preparation of a batch looks at, and the kernels to run."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, kind: str = "cuda", drafts: int = 2
    ) -> None:
        monkeypatch.setenv("ASCEND_RUNTIME_DEVICE", kind)
        # As it is, but for the pinning, which needs a device.
        monkeypatch.setattr(
            buffer_utils, "async_tensor_h2d", lambda x, dtype, *a, **k: torch.tensor(x, dtype=dtype)
        )
        with on("cpu"):
            states = RequestState(REQUESTS, 64, TOKENS, drafts, 100, CPU, torch.float32, False)
        self.runner = GPUModelRunner.__new__(GPUModelRunner)
        vars(self.runner).update(
            req_states=states,
            input_buffers=InputBuffers(REQUESTS, TOKENS, CPU),
            block_tables=SimpleNamespace(append_block_ids=lambda *a, **k: None),
            device=CPU,
            max_num_reqs=REQUESTS,
            num_speculative_steps=drafts,
            use_dcp=False,
            is_last_pp_rank=False,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(kernels(input_batch, *KERNELS))
            stack.enter_context(kernels(buffer_utils, "_apply_write_kernel"))
            yield

    def add(self, name: str, tokens: int, computed: int = 0) -> None:
        self.runner.req_states.add_request(name, tokens, list(range(tokens)), computed)
        with self.running():
            self.runner.req_states.apply_staged_writes()

    def step(
        self,
        scheduled: dict[str, int],
        cached: dict[str, int] | None = None,
        drafts: dict[str, int] | None = None,
        padded: int | None = None,
    ) -> InputBatch:
        """Prepare a batch; `cached` is what the scheduler says of the running requests."""
        cached = cached or {}
        output = SimpleNamespace(
            total_num_scheduled_tokens=sum(scheduled.values()),
            num_scheduled_tokens=scheduled,
            scheduled_spec_decode_tokens={r: [0] * n for r, n in (drafts or {}).items()},
            has_structured_output_requests=False,
            scheduled_cached_reqs=CachedRequestData(
                req_ids=list(cached),
                resumed_req_ids=set(),
                new_token_ids=[],
                all_token_ids={},
                new_block_ids=[None] * len(cached),
                num_computed_tokens=list(cached.values()),
                num_output_tokens=[],
            ),
        )
        shape = SimpleNamespace(num_tokens=output.total_num_scheduled_tokens, num_reqs=padded)
        self.runner.update_requests(output)
        with self.running():
            return self.runner.prepare_inputs(output, shape)

    def finish(self, batch: InputBatch, rejected: list[int]) -> None:
        """Sample what was asked for less `rejected`, by the order of the batch."""
        logits = np.diff(batch.cu_num_logits_np)
        tokens = torch.zeros(batch.num_reqs, self.runner.num_speculative_steps + 1).long()
        sampled = torch.tensor(logits, dtype=torch.int32) - torch.tensor(rejected)
        with self.running():
            self.runner.postprocess(batch, tokens, sampled.int(), torch.tensor(rejected).int())


@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_lengths_follow_the_device(monkeypatch, kind: str) -> None:
    """Prefill in parts, decoding, and drafts of which some are rejected; the shortest is first."""
    it = Runner(monkeypatch, kind)
    it.add("a", 5)
    it.add("b", 7, computed=2)
    batch = it.step({"a": 5, "b": 3})
    assert batch.req_ids == ["b", "a"]
    assert batch.seq_lens_cpu_upper_bound.tolist() == [5, 5] == batch.seq_lens.tolist()
    it.finish(batch, [0, 0])
    batch = it.step({"a": 3, "b": 2}, {"a": 5, "b": 5}, drafts={"a": 2}, padded=4)
    assert batch.seq_lens_cpu_upper_bound.tolist() == [7, 8, 0, 0] == batch.seq_lens.tolist()
    it.finish(batch, [0, 2])
    batch = it.step({"a": 3, "b": 1}, {"a": 6, "b": 7}, drafts={"a": 2})
    assert batch.seq_lens_cpu_upper_bound.tolist() == [8, 9] == batch.seq_lens.tolist()
    assert batch.seq_lens_cpu_upper_bound.dtype == torch.int32


def test_bound_does_not_rise_by_drafts_rejected_long_ago(monkeypatch) -> None:
    """The scheduler is a step behind, so drafts in flight count, and only those."""
    it = Runner(monkeypatch)
    it.add("a", 5)
    it.finish(it.step({"a": 5}), [0])
    known = 5
    for step in range(6):
        batch = it.step({"a": 3}, {"a": known}, drafts={"a": 2})
        exact = batch.seq_lens.item()
        assert exact == 5 + step + 3
        assert batch.seq_lens_cpu_upper_bound.item() == exact + (2 if step else 0)
        it.finish(batch, [2])
        known = exact  # as if all had been accepted


def test_place_of_a_request_that_left_is_started_anew(monkeypatch) -> None:
    it = Runner(monkeypatch)
    it.add("a", 20, computed=16)
    it.finish(it.step({"a": 4}), [0])
    it.runner.req_states.remove_request("a")
    it.add("b", 3)
    assert it.runner.req_states.req_id_to_index["b"] == REQUESTS - 1
    assert it.step({"b": 3}).seq_lens_cpu_upper_bound.tolist() == [3]


def test_batches_do_not_share_their_lengths(monkeypatch) -> None:
    """The next one is prepared while this one still runs."""
    it = Runner(monkeypatch)
    it.add("a", 5)
    first = it.step({"a": 2})
    it.finish(first, [0])
    assert it.step({"a": 3}, {"a": 2}).seq_lens_cpu_upper_bound.tolist() == [5]
    assert first.seq_lens_cpu_upper_bound.tolist() == [2]


@pytest.mark.parametrize(("kind", "size"), [("npu", REQUESTS + 2), ("cuda", REQUESTS + 1)])
def test_offsets_are_filled_to_the_end(monkeypatch, kind: str, size: int) -> None:
    it = Runner(monkeypatch, kind)
    it.runner.input_buffers.query_start_loc.fill_(-1)
    it.add("a", 5)
    it.add("b", 9)
    batch = it.step({"a": 5, "b": 4}, padded=REQUESTS)
    offsets = it.runner.input_buffers.query_start_loc.tolist()
    assert offsets == [0, 4] + [9] * (size - 2)
    assert batch.query_start_loc.tolist() == batch.query_start_loc_np.tolist() == offsets[:9]


# Slots.


def tables(kind: str, block_sizes: list[int], width: int = 64, **cp: int) -> BlockTables:
    """Tables of 4 requests with up to `width` tokens."""
    with pytest.MonkeyPatch.context() as patch, on("cpu"):
        patch.setenv("ASCEND_RUNTIME_DEVICE", kind)
        return BlockTables(block_sizes, 4, TOKENS, width, CPU, **cp)


def slots(of: BlockTables, positions: range | list[int], request: int = 1) -> list[list[int]]:
    """The slots of one request's tokens, and all that follow in the buffer."""
    memory = tuple(table.gpu for table in of.block_tables)
    with kernels(block_table, "_compute_slot_mappings_kernel", memory=memory):
        given = torch.tensor(list(positions))
        found = of.compute_slot_mappings(
            torch.tensor([request], dtype=torch.int32),
            torch.tensor([0, len(given)], dtype=torch.int32),
            given,
            num_tokens_padded=TOKENS,
        )
    assert found.data_ptr() == of.slot_mappings.data_ptr() and found.dtype == of.slot_mappings.dtype
    return found.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_of_the_slots(monkeypatch, kind: str) -> None:
    monkeypatch.setattr(
        block_table, "StagedWriteTensor", lambda size, **k: SimpleNamespace(gpu=torch.zeros(size))
    )
    monkeypatch.setattr(block_table, "UvaBackedTensor", lambda *a, **k: None)
    with on_platform(kind):
        made = BlockTables([16], 4, TOKENS, 64, CPU)
    assert made.slot_mappings.dtype == (torch.int32 if kind == "npu" else torch.int64)
    assert made.block_table_strides.dtype == torch.int64
    assert made.get_dummy_slot_mappings(3).tolist() == [[-1, -1, -1]]


@pytest.mark.parametrize("kind", ["npu", "cuda"])
def test_slots_of_tokens(kind: str) -> None:
    of = tables(kind, [16, 32])
    of.block_tables[0].gpu[1, :2] = torch.tensor([9, 4])
    of.block_tables[1].gpu[1, :2] = torch.tensor([3, 8])
    first, second = slots(of, range(14, 19))
    assert first == [158, 159, 64, 65, 66] + [-1] * (TOKENS - 5)
    assert second == [110, 111, 112, 113, 114] + [-1] * (TOKENS - 5)


@pytest.mark.parametrize(
    ("rank", "wanted"), [(0, [151, -1, 64, -1, 65]), (1, [-1, 151, -1, 64, -1])]
)
def test_slots_with_context_parallelism(rank: int, wanted: list[int]) -> None:
    of = tables("npu", [16], cp_size=2, cp_rank=rank)
    of.block_tables[0].gpu[1, :2] = torch.tensor([9, 4])
    assert slots(of, [14, 15, 32, 33, 34])[0][:5] == wanted


def test_slots_above_the_integers_of_float32() -> None:
    of = tables("npu", [128], width=256)
    of.block_tables[0].gpu[1] = torch.tensor([200001, 200003], dtype=torch.int32)
    found = slots(of, [127, 129])[0][:2]
    assert found == [25600255, 25600385]
    assert torch.tensor(found).float().long().tolist() == [25600256, 25600384]  # what they became


def test_slots_at_the_end_of_int32() -> None:
    of = tables("npu", [128], width=256)
    of.block_tables[0].gpu[1] = torch.tensor([2**24 - 1, 0], dtype=torch.int32)
    assert slots(of, [127])[0][0] == 2**31 - 1


@pytest.mark.parametrize("request_index", [0, 3])
def test_rows_are_read_to_their_end_and_no_further(request_index: int) -> None:
    """Whatever their length: shorter and longer than 4096 blocks, and the last of the table."""
    for blocks in (2, 5000):
        of = tables("npu", [2], width=2 * blocks)
        row = torch.arange(blocks, dtype=torch.int32) + 7
        of.block_tables[0].gpu[request_index] = row
        last = 2 * blocks - 1
        wanted = [2 * (7 + blocks - 1), 2 * (7 + blocks - 1) + 1]
        assert slots(of, [last - 1, last], request_index)[0][:2] == wanted
