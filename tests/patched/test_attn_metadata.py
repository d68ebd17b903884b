"""W25b: the one builder of attention metadata makes the plugin's class on NPUs."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, fields
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from platform_kit import KINDS, on_platform
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm.v1.worker.gpu import attn_utils, model_states
from vllm.v1.worker.gpu.input_batch import InputBatch, InputBuffers
from vllm.v1.worker.gpu.model_states import default, init_model_state, whisper
from vllm.v1.worker.gpu.spec_decode.eagle import speculator

import ascend_runtime.attn


class State(enum.Enum):
    """An enumeration of the plugin's own, which equals no number."""

    NO_CACHE, CACHE_HIT, DECODE, CHUNKED, SPECULATIVE = range(5)


@dataclass
class Extended(CommonAttentionMetadata):
    seq_lens_cpu: torch.Tensor = None
    attn_state: State | None = None
    positions: torch.Tensor = None
    graph_pad_size: int = -1
    num_input_tokens: int = 0


@dataclass
class Little(CommonAttentionMetadata):
    attn_state: int = -1


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    yield
    ascend_runtime.attn.register_metadata(None)


class Group:
    """An attention group of one layer, whose builder shows what it was given."""

    def __init__(self, spec: object = None) -> None:
        self.layer_names = ["layer"]
        self.kv_cache_spec = spec
        self.vllm_config = SimpleNamespace(
            model_config=SimpleNamespace(runner_type="generate", attn_type="decoder"),
            scheduler_config=SimpleNamespace(enable_chunked_prefill=True, async_scheduling=False),
            speculative_config=None,
        )

    def get_metadata_builder(self, index: int) -> Group:
        return self

    def build(self, common_prefix_len: int, common_attn_metadata: object) -> object:
        return common_attn_metadata


def batch(padded: int = 2) -> SimpleNamespace:
    """Two requests of 6 and 9 tokens, of which 1 and 3 are scheduled, perhaps padded to more."""
    lengths = torch.tensor([6, 9] + [0] * (padded - 2), dtype=torch.int32)
    return SimpleNamespace(
        req_ids=["a", "b"],
        num_reqs=2,
        num_reqs_after_padding=padded,
        num_tokens=4,
        num_tokens_after_padding=4,
        num_scheduled_tokens=np.array([1, 3], dtype=np.int32),
        cu_num_logits_np=np.array([0, 1, 2], dtype=np.int32),
        query_start_loc=torch.tensor([0, 1, 4] + [4] * (padded - 2), dtype=torch.int32),
        query_start_loc_np=np.array([0, 1, 4] + [4] * (padded - 2), dtype=np.int32),
        seq_lens=lengths,
        seq_lens_cpu_upper_bound=lengths.clone(),
        dcp_local_seq_lens=torch.tensor([3, 5, 0, 0][:padded]),
        positions=torch.tensor([5, 6, 7, 8]),
    )


def prepare(
    of: SimpleNamespace,
    state: object = default.DefaultModelState,
    mode: CUDAGraphMode = CUDAGraphMode.NONE,
    groups: list | None = None,
    **attributes: object,
) -> CommonAttentionMetadata:
    """Have vLLM's own model state build the metadata of one layer."""
    made = state.__new__(state)
    vars(made).update(max_model_len=64, **attributes)
    groups = groups or [[Group()]]
    config = SimpleNamespace(kv_cache_groups=groups)
    tables = tuple(torch.zeros(4, 2) for _ in groups)
    slots = torch.zeros(len(groups), 4)
    return made.prepare_attn(of, mode, tables, slots, groups, config)["layer"]


@pytest.mark.parametrize(
    ("kind", "register"),
    [(kind, register) for kind in KINDS for register in {False, kind != "npu"}],
)
def test_elsewhere_it_is_vllms(kind: str, register: bool) -> None:
    if register:
        ascend_runtime.attn.register_metadata(Extended)
    of = batch()
    with on_platform(kind):
        made = prepare(of)
    assert type(made) is CommonAttentionMetadata
    found = {field.name: getattr(made, field.name) for field in fields(made)}
    assert {name for name, value in found.items() if value is None} == {
        "logits_indices_padded",
        "num_logits_indices",
        "encoder_seq_lens",
        "encoder_seq_lens_cpu",
        "dcp_local_seq_lens_cpu",
        "_seq_lens_cpu",
        "_num_computed_tokens_cpu",
        "_num_computed_tokens_cache",
    }
    assert made.query_start_loc is of.query_start_loc
    assert made.query_start_loc_cpu.tolist() == [0, 1, 4]
    assert made.seq_lens.tolist() == [6, 9]
    numbers = (made.num_reqs, made.num_actual_tokens, made.max_query_len, made.max_seq_len)
    assert numbers == (2, 4, 3, 64)
    assert made.causal is True and made.dcp_local_seq_lens.tolist() == [3, 5]


def test_on_npus_it_is_the_plugins() -> None:
    ascend_runtime.attn.register_metadata(Extended, State)
    of = batch()
    with on_platform("npu"):
        made = prepare(of)
    assert type(made) is Extended
    assert made.seq_lens_cpu.tolist() == [6, 9] and made.seq_lens_cpu.dtype == torch.int32
    assert made.seq_lens_cpu.device.type == "cpu"
    assert made.attn_state is State.CHUNKED
    assert made.positions is of.positions
    assert (made.graph_pad_size, made.num_input_tokens) == (-1, 0)
    assert made.seq_lens.tolist() == [6, 9] and made.dcp_local_seq_lens.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("mode", "lengths", "local"),
    [
        (CUDAGraphMode.FULL, [6, 9, 0, 0], [3, 5, 0, 0]),
        (CUDAGraphMode.PIECEWISE, [6, 9], [3, 5]),
    ],
)
def test_lengths_are_as_many_as_the_requests(mode, lengths: list, local: list) -> None:
    """Context parallel lengths included, which one replacement took and threw away."""
    ascend_runtime.attn.register_metadata(Extended, State)
    of = batch(padded=4)
    of.num_scheduled_tokens[:] = 1
    with on_platform("npu"):
        made = prepare(of, mode=mode)
    assert made.seq_lens_cpu.tolist() == lengths == made.seq_lens.tolist()
    assert made.dcp_local_seq_lens.tolist() == local
    assert made.attn_state is State.DECODE  # the padding is no request


def test_dummy_batch_of_a_captured_decode_is_one() -> None:
    """A copy of the dummy once lost the state that it was given."""
    ascend_runtime.attn.register_metadata(Extended, State)
    with on_platform("npu"):
        dummy = InputBatch.make_dummy(3, 3, InputBuffers(4, 8, torch.device("cpu")))
        made = prepare(dummy, mode=CUDAGraphMode.FULL)
    assert made.attn_state is State.DECODE and made.seq_lens_cpu.tolist() == [1, 1, 1]
    assert made.seq_lens.data_ptr() == dummy.seq_lens.data_ptr()


def test_class_with_fewer_fields_gets_those_it_has() -> None:
    ascend_runtime.attn.register_metadata(Little)
    with on_platform("npu"):
        made = prepare(batch())
    assert type(made) is Little
    assert made.attn_state is ascend_runtime.attn.BatchState.CHUNKED_PREFILL


def test_drafts_in_flight_are_looked_up_once_for_all_groups() -> None:
    ascend_runtime.attn.register_metadata(Extended, State)
    groups = [[Group()], [Group()]]
    config = groups[0][0].vllm_config
    config.speculative_config = SimpleNamespace(method="mtp")
    config.scheduler_config.async_scheduling = True
    of = batch()
    of.seq_lens_cpu_upper_bound += 2
    asked = []

    class OnDevice(torch.Tensor):
        def cpu(self) -> torch.Tensor:
            asked.append(len(self))
            return self.as_subclass(torch.Tensor)

    of.seq_lens = of.seq_lens.as_subclass(OnDevice)
    with on_platform("npu"):
        made = prepare(of, groups=groups)
    assert made.seq_lens_cpu.tolist() == [6, 9] and asked == [2]


def test_stranger_is_refused() -> None:
    @dataclass
    class Stranger:
        attn_state: int = 0

    ascend_runtime.attn.register_metadata(Stranger)
    with on_platform("npu"), pytest.raises(TypeError, match=r"Stranger .* is no subclass"):
        prepare(batch())


def test_drafting_runner_calls_the_same_builder_without_a_batch() -> None:
    assert speculator.build_attn_metadata is attn_utils.build_attn_metadata
    ascend_runtime.attn.register_metadata(Extended, State)
    group = Group()
    with on_platform("npu"):
        made = speculator.build_attn_metadata(
            attn_groups=[[group]],
            num_reqs=2,
            num_tokens=2,
            query_start_loc_gpu=torch.arange(3, dtype=torch.int32),
            query_start_loc_cpu=torch.arange(3, dtype=torch.int32),
            max_query_len=1,
            seq_lens=torch.tensor([7, 10]),
            max_seq_len=64,
            block_tables=[torch.zeros(2, 2)],
            slot_mappings=torch.zeros(1, 2),
            kv_cache_config=SimpleNamespace(kv_cache_groups=[1]),
        )["layer"]
    assert made.seq_lens_cpu.tolist() == [64, 64] and made.attn_state is State.DECODE
    assert made.positions is None


def test_encoder_lengths_reach_the_plugins_class() -> None:
    """Whisper's own model state fills them in, for its cross attention."""
    ascend_runtime.attn.register_metadata(Extended, State)
    cross = Group(
        CrossAttentionSpec(block_size=16, num_kv_heads=1, head_size=8, dtype=torch.float32)
    )
    feature = SimpleNamespace(mm_position=SimpleNamespace(get_num_embeds=lambda: 1500))
    with on_platform("npu"):
        made = prepare(
            batch(),
            whisper.WhisperModelState,
            groups=[[cross]],
            encoder_cache=SimpleNamespace(mm_features={"b": [feature]}),
            encoder_seq_lens_gpu=torch.zeros(4, dtype=torch.int32),
            max_encoder_len=1500,
        )
    assert type(made) is Extended
    assert made.encoder_seq_lens.tolist() == [0, 1500]
    assert made.encoder_seq_lens_cpu.tolist() == [0, 1500]
    assert made.seq_lens_cpu.tolist() == [6, 9]


@pytest.mark.parametrize(
    ("architecture", "state"),
    [
        ("WhisperForConditionalGeneration", whisper.WhisperModelState),
        ("LlamaForCausalLM", default.DefaultModelState),
    ],
)
def test_models_keep_their_state(monkeypatch, architecture: str, state: type) -> None:
    monkeypatch.setattr(state, "__init__", lambda self, *a: None)
    config = SimpleNamespace(model_config=SimpleNamespace(architectures=[architecture]))
    ascend_runtime.attn.register_metadata(Extended, State)
    with on_platform("npu"):
        assert type(init_model_state(config, None, None, torch.device("cpu"))) is state
    assert model_states.init_model_state is init_model_state
