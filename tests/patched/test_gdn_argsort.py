"""W7: the tokens of a gated delta net are parted by a stable sort of integers."""

from __future__ import annotations

import ast
import inspect
import textwrap
from types import SimpleNamespace

import pytest
import torch
from vllm.config import CUDAGraphMode
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends import gdn_attn
from vllm.v1.attention.backends.gdn_attn import GDNAttentionMetadata, GDNAttentionMetadataBuilder
from vllm.v1.kv_cache_interface import MambaSpec

CPU = torch.device("cpu")


def builder(drafts: int) -> GDNAttentionMetadataBuilder:
    """Return vLLM's builder, with a stand-in for the configuration."""
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            cudagraph_mode=CUDAGraphMode.NONE, max_cudagraph_capture_size=None
        ),
        speculative_config=SimpleNamespace(
            num_speculative_tokens=drafts, parallel_drafting=False, method="ngram"
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=8),
        cache_config=SimpleNamespace(mamba_cache_mode="none"),
    )
    spec = MambaSpec(block_size=16, shapes=((16, 64),), dtypes=(torch.float16,))
    return GDNAttentionMetadataBuilder(spec, ["layer.0"], config, CPU)


def build(query_lens: list[int], drafts: list[int]) -> GDNAttentionMetadata:
    """Build the metadata of a batch; a draft count of -1 is a sequence without drafts."""
    starts = torch.tensor([0, *torch.tensor(query_lens).cumsum(0)], dtype=torch.int32)
    seq_lens = torch.tensor(query_lens, dtype=torch.int32) + 20
    total, count = sum(query_lens), len(query_lens)
    common = CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=seq_lens,
        num_reqs=count,
        num_actual_tokens=total,
        max_query_len=max(query_lens),
        max_seq_len=int(seq_lens.max()),
        block_table_tensor=torch.arange(count * 4, dtype=torch.int32).reshape(count, 4),
        slot_mapping=torch.arange(total),
    )
    return builder(2).build(
        common_prefix_len=0,
        common_attn_metadata=common,
        num_accepted_tokens=torch.ones(count, dtype=torch.int32),
        num_decode_draft_tokens_cpu=torch.tensor(drafts, dtype=torch.int32),
    )


@pytest.mark.parametrize(
    ("query_lens", "drafts", "plain", "spec"),
    [
        ([50, 1, 3], [-1, -1, 2], [*range(51)], [51, 52, 53]),
        ([3, 1, 2], [2, -1, -1], [3, 4, 5], [0, 1, 2]),
        ([3, 1, 3, 4, 2], [2, -1, 2, -1, 1], [3, 7, 8, 9, 10], [0, 1, 2, 4, 5, 6, 11, 12]),
        ([1, 3], [-1, 2], [0], [1, 2, 3]),
    ],
)
def test_tokens_are_parted_in_their_order(query_lens, drafts, plain, spec) -> None:
    metadata = build(query_lens, drafts)
    assert metadata.non_spec_token_indx.tolist() == plain
    assert metadata.spec_token_indx.tolist() == spec
    assert sorted(plain + spec) == list(range(sum(query_lens)))


def argsorts() -> list[ast.Call]:
    source = textwrap.dedent(inspect.getsource(GDNAttentionMetadataBuilder.build))
    return [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.argsort"
    ]


def test_expression_orders_a_mask_as_the_bool_did() -> None:
    (call,) = argsorts()
    mask = torch.tensor([1, 0, 1, 0, 0, 1], dtype=torch.bool)
    index = eval(ast.unparse(call), {"torch": torch, "spec_token_masks": mask})
    assert index.tolist() == [1, 3, 4, 0, 2, 5]
    generator = torch.Generator().manual_seed(0)
    for size in (1, 17, 1000):
        mask = torch.rand(size, generator=generator) < 0.5
        index = eval(ast.unparse(call), {"torch": torch, "spec_token_masks": mask})
        assert torch.equal(index, torch.argsort(mask, stable=True))


def test_no_bool_reaches_argsort(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    argsort = torch.argsort

    def watched(values: torch.Tensor, **options: bool) -> torch.Tensor:
        seen.append((values.dtype, options))
        return argsort(values, **options)

    monkeypatch.setattr(torch, "argsort", watched)
    build([3, 1, 2], [2, -1, -1])
    assert seen == [(torch.int32, {"stable": True})]
    for call in argsorts():
        assert ast.unparse(call.args[0]).endswith(".to(torch.int32)")


def test_module_has_the_real_torch() -> None:
    assert gdn_attn.torch is torch
