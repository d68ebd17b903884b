"""W7a: the chunks of a gated delta net are worked out once, on the host."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from types import SimpleNamespace

import gdn_chunk_kit as kit
import pytest
import torch
from gdn_chunk_kit import batch, recurrence, watched
from patched_kit import npu_scene, pristine
from test_gdn_argsort import build
from vllm.model_executor.layers.fla.ops import chunk, cumsum, index
from vllm.model_executor.models import olmo_hybrid, qwen3_next
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata

from ascend_runtime.gdn import build_chunk_metadata

OPS = "vllm/model_executor/layers/fla/ops"
LENGTHS = [[130, 0, 64], [70], [4, 8], [0, 1, 0], [64, 65, 128, 1]]


def chunks_of(metadata: GDNAttentionMetadata) -> tuple[object, object]:
    fields = (metadata.chunk_indices, metadata.chunk_offsets)
    return tuple(x if x is None else x.tolist() for x in fields)


@pytest.mark.parametrize(
    ("query_lens", "drafts", "indices", "offsets"),
    [
        ([4, 8], [-1, -1], [[0, 0], [1, 0]], [0, 1, 2]),
        ([1, 130], [-1, -1], [[0, 0], [1, 0], [1, 1], [1, 2]], [0, 1, 4]),
        ([4, 4, 0, 8], [-1, 3, -1, -1], [[0, 0], [2, 0]], [0, 1, 1, 2]),
        ([50, 1, 3], [-1, -1, 2], [[0, 0], [1, 0]], [0, 1, 2]),
        ([0, 1, 3], [-1, -1, 2], [[1, 0]], [0, 0, 1]),
        ([1, 1, 1, 3], [-1, -1, -1, 2], [[0, 0], [1, 0], [2, 0]], [0, 1, 2, 3]),
        ([3, 200], [2, -1], [[0, 0], [0, 1], [0, 2], [0, 3]], [0, 4]),
    ],
)
def test_builder(query_lens, drafts, indices, offsets) -> None:
    metadata = build(query_lens, drafts)
    assert chunks_of(metadata) == (indices, offsets)
    assert metadata.chunk_indices.dtype == metadata.chunk_offsets.dtype == torch.int32
    assert metadata.chunk_meta.chunk_indices is metadata.chunk_indices
    assert metadata.chunk_meta.chunk_offsets is metadata.chunk_offsets
    assert len(metadata.chunk_offsets) == len(metadata.non_spec_query_start_loc)


@pytest.mark.parametrize(
    ("query_lens", "drafts"), [([1, 1, 1], [-1, -1, -1]), ([3, 3], [2, 2]), ([1], [-1])]
)
def test_without_prefills_there_are_no_chunks(query_lens, drafts) -> None:
    metadata = build(query_lens, drafts)
    assert metadata.num_prefills == 0
    assert chunks_of(metadata) == (None, None) and metadata.chunk_meta is None


def test_builder_agrees_with_what_the_operations_work_out(monkeypatch) -> None:
    monkeypatch.setattr(index, "triton", kit.TRITON)
    for query_lens, drafts in (([7, 64, 129], [-1, -1, -1]), ([3, 0, 77, 1], [2, -1, -1, -1])):
        metadata = build(query_lens, drafts)
        starts = metadata.non_spec_query_start_loc
        assert torch.equal(metadata.chunk_indices, index.prepare_chunk_indices(starts, 64))
        assert torch.equal(metadata.chunk_offsets, index.prepare_chunk_offsets(starts, 64).int())


def test_fields_are_the_dataclasss_own() -> None:
    """Attributes that only an object has are lost by `replace`."""
    metadata = build([4, 8], [-1, -1])
    copy = dataclasses.replace(metadata, num_prefills=1)
    for name in ("chunk_indices", "chunk_offsets", "chunk_meta"):
        assert getattr(copy, name) is getattr(metadata, name) is not None


def test_prefill_context_parallelism_is_vllms_group(monkeypatch) -> None:
    """The helper reads vLLM's own variable, which has no function to ask whether it is set."""
    from vllm.distributed import parallel_state

    assert build([4, 8], [-1, -1]).chunk_meta.update_chunk_offsets is None
    group = SimpleNamespace(world_size=2)
    monkeypatch.setattr(parallel_state, "_PCP", group)
    assert parallel_state.get_pcp_group() is group
    meta = build([4, 8], [-1, -1]).chunk_meta
    assert meta.update_chunk_offsets.tolist() == [0, 2, 4]
    assert meta.final_chunk_indices.tolist() == [1, 3]


def given(lengths: list[int]) -> dict[str, torch.Tensor]:
    starts = torch.tensor([0, *lengths]).cumsum(0)
    meta = build_chunk_metadata(starts, device=torch.device("cpu"))
    return {"chunk_indices": meta.chunk_indices, "chunk_offsets": meta.chunk_offsets}


@pytest.mark.filterwarnings("ignore:Input tensor shape suggests")
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_rule_is_the_same_with_chunks_given(lengths) -> None:
    arguments = batch(lengths)
    with watched() as alone:
        o, state = chunk.chunk_gated_delta_rule(**arguments)
    with watched() as with_chunks:
        o_given, state_given = chunk.chunk_gated_delta_rule(**arguments, **given(lengths))
    assert torch.equal(o, o_given) and torch.equal(state, state_given)
    wanted, wanted_state = recurrence(lengths, arguments)
    torch.testing.assert_close(o, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state.double(), wanted_state, rtol=1e-4, atol=1e-5)
    assert (alone.indices, alone.offsets) == (6, 1)
    assert (with_chunks.indices, with_chunks.offsets) == (0, 0)
    assert with_chunks.launches == list(kit.KERNELS.values())


@pytest.mark.filterwarnings("ignore:Input tensor shape suggests")
def test_rule_reads_the_chunks_that_are_given() -> None:
    """The second sequence's chunk taken for the first's gives another result."""
    arguments, chunks = batch([4, 8]), given([4, 8])
    with watched():
        o, _ = chunk.chunk_gated_delta_rule(**arguments, **chunks)
        chunks["chunk_indices"] = chunks["chunk_indices"].flip(0)
        assert not torch.equal(chunk.chunk_gated_delta_rule(**arguments, **chunks)[0], o)


def test_gates_of_kda_may_be_given_chunks_too(monkeypatch) -> None:
    grids = []
    launcher = kit.Launcher(
        "vector", lambda grid, *_, **__: grids.append(grid({"S": 3, "BS": 3})), kit.Seen()
    )
    g, starts = torch.zeros(1, 5, 2, 3), torch.tensor([0, 5])
    with watched() as counts:
        monkeypatch.setattr(cumsum, "chunk_local_cumsum_vector_kernel", launcher)
        cumsum.chunk_local_cumsum(g, 64, cu_seqlens=starts)
        assert counts.indices == 1
        cumsum.chunk_local_cumsum(
            g, 64, cu_seqlens=starts, chunk_indices=torch.zeros(7, 2, dtype=torch.int32)
        )
    assert counts.indices == 1
    assert grids == [(1, 1, 2), (1, 7, 2)]


def test_kda_is_as_it_was(installed) -> None:
    assert f"{OPS}/kda.py" not in installed.edited


EDITED = [
    ("chunk", "chunk_gated_delta_rule_fwd"),
    ("chunk", "chunk_gated_delta_rule"),
    ("chunk_delta_h", "chunk_gated_delta_rule_fwd_h"),
    ("chunk_o", "chunk_fwd_o"),
    ("chunk_scaled_dot_kkt", "chunk_scaled_dot_kkt_fwd"),
    ("cumsum", "chunk_local_cumsum_scalar"),
    ("cumsum", "chunk_local_cumsum_vector"),
    ("cumsum", "chunk_local_cumsum"),
    ("solve_tril", "solve_tril"),
    ("wy_fast", "recompute_w_u_fwd"),
]


@pytest.mark.parametrize(("module", "function"), EDITED)
def test_positional_arguments_mean_what_they_meant(base, module, function) -> None:
    def positional(where: object) -> list[str]:
        parameters = inspect.signature(getattr(where, function)).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    edited = next(m for m in [chunk, *kit.KERNELS] if m.__name__.endswith(f".{module}"))
    ours, before = positional(edited), positional(pristine(base.root, f"{OPS}/{module}.py"))
    assert ours[: len(before)] == before
    assert set(ours[len(before) :]) <= {"chunk_indices", "chunk_offsets"} != set()


FORWARDS = {
    "forward_native": True,
    "forward_cuda": False,
    "forward_hip": False,
    "forward_xpu": True,
    "forward_cpu": True,
    "forward_tpu": True,
    "forward_oot": True,
}


@pytest.mark.parametrize(("method", "takes_chunks"), FORWARDS.items())
def test_every_platforms_form_of_the_layer(monkeypatch, method, takes_chunks) -> None:
    """FlashInfer's kernel has no such arguments."""
    calls = []
    for name in ("fla_chunk_gated_delta_rule", "fi_chunk_gated_delta_rule"):
        monkeypatch.setattr(qwen3_next, name, lambda _n=name, **given: calls.append((_n, given)))
    layer = object.__new__(qwen3_next.ChunkGatedDeltaRule)
    names = ["q", "k", "v", "g", "beta", "initial_state", "output_final_state", "cu_seqlens"]
    arguments = {**dict.fromkeys(names, 0), "use_qk_l2norm_in_kernel": False}
    chunks = {"chunk_indices": 5, "chunk_offsets": 6}
    getattr(layer, method)(**arguments, **chunks)
    if takes_chunks:
        assert calls == [("fla_chunk_gated_delta_rule", {**arguments, **chunks})]
    else:
        assert calls == [("fi_chunk_gated_delta_rule", arguments)]


def test_forms_of_the_layer_are_all_known() -> None:
    methods = {name for name in dir(qwen3_next.ChunkGatedDeltaRule) if name.startswith("forward_")}
    assert methods == set(FORWARDS)


def layer_call(patch, module, layer_class, metadata: GDNAttentionMetadata) -> dict[str, object]:
    """What a layer's core hands the rule for a batch."""
    calls: list[dict] = []
    tokens = metadata.num_actual_tokens

    def rule(**given: object) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(given)
        return torch.zeros(1, metadata.num_prefill_tokens, 1, 4), given["initial_state"]

    def spec(**_: object) -> tuple[torch.Tensor, None]:
        return torch.zeros(1, metadata.num_spec_decode_tokens, 1, 4), None

    def gates(A_log, a, b, *_: object) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(1, tokens, 1), torch.ones(1, tokens, 1)

    context = SimpleNamespace(attn_metadata={"layer": metadata}, virtual_engine=0)
    stand_ins = {
        "get_forward_context": lambda: context,
        "causal_conv1d_fn": lambda x, *_, **__: x,
        "causal_conv1d_update": lambda x, *_, **__: x,
        "fused_gdn_gating": gates,
        "fused_olmo_hybrid_gdn_gating": gates,
        "fused_sigmoid_gating_delta_rule_update": spec,
        "fused_recurrent_gated_delta_rule": spec,
        "chunk_gated_delta_rule": rule,
    }
    for name, stand_in in stand_ins.items():
        if hasattr(module, name):
            patch.setattr(module, name, stand_in)
    layer = SimpleNamespace(
        prefix="layer",
        enable_packed_recurrent_decode=True,
        kv_cache=[(torch.zeros(64, 3, 12), torch.zeros(64, 1, 4, 4))],
        conv1d=SimpleNamespace(weight=torch.zeros(12, 1, 4), bias=None),
        rearrange_mixed_qkv=lambda x: (x, x, x),
        chunk_gated_delta_rule=rule,
        **dict.fromkeys(("activation", "A_log", "dt_bias", "allow_neg_eigval")),
    )
    inputs = torch.zeros(tokens, 12), torch.zeros(tokens, 1), torch.zeros(tokens, 1)
    layer_class._forward_core(layer, *inputs, torch.zeros(tokens, 1, 4))
    (call,) = calls
    return call


LAYERS = [
    (qwen3_next, qwen3_next.Qwen3NextGatedDeltaNet),
    (olmo_hybrid, olmo_hybrid.OlmoHybridGatedDeltaNet),
]


@pytest.mark.parametrize(("module", "layer_class"), LAYERS)
@pytest.mark.parametrize(("query_lens", "drafts"), [([4, 8], [-1, -1]), ([4, 3, 8], [-1, 2, -1])])
def test_layers_pass_their_chunks_on(monkeypatch, module, layer_class, query_lens, drafts) -> None:
    metadata = build(query_lens, drafts)
    call = layer_call(monkeypatch, module, layer_class, metadata)
    assert call["chunk_indices"] is metadata.chunk_indices is not None
    assert call["chunk_offsets"] is metadata.chunk_offsets is not None
    assert call["cu_seqlens"] is metadata.non_spec_query_start_loc


def test_qwen3_5_has_the_same_core(installed) -> None:
    """Its module wants torchvision, so it is only read."""
    source = (installed.site / "vllm/model_executor/models/qwen3_5.py").read_text()
    (layer,) = (
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef) and node.name == "Qwen3_5GatedDeltaNet"
    )
    assert [ast.unparse(base) for base in layer.bases] == ["Qwen3NextGatedDeltaNet"]
    assert "_forward_core" not in {getattr(member, "name", "") for member in layer.body}


def test_builds_in_quick_succession_on_an_npu() -> None:
    """Three builds whose copies are made only after the last one."""
    answer = npu_scene("npu_gdn_scenes.py", "builds")
    assert answer["chunks"] == [
        [[[0, 0], [1, 0]], [0, 1, 2]],
        [[[0, 0], [0, 1], [0, 2]], [0, 3]],
        [[[0, 0], [2, 0]], [0, 1, 1, 2]],
    ]
    assert answer["copies"] == answer["memory"] == 3  # one for each build, each from its own
    assert answer["devices"] == ["npu", "npu"]


def test_nothing_comes_back_from_an_npu() -> None:
    answer = npu_scene("npu_gdn_scenes.py", "rule")
    assert answer["given"] == []
    assert answer["alone"]
