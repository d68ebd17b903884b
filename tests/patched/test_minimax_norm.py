"""W17b and W18a: the key norm of MiniMax-M2 has the slices of its key heads."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from model_kit import config_with, engine_config, llama, one_rank, tensor_parallel
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.model_executor.layers.mamba.linear_attn import MiniMaxText01RMSNormTP
from vllm.model_executor.models import bailing_moe_linear
from vllm.model_executor.models.minimax_m2 import MiniMaxM2Attention

HEADS, KV_HEADS, DIM = 16, 8, 128
WEIGHT = torch.arange(KV_HEADS * DIM).float()


@pytest.fixture(scope="module")
def config() -> Iterator[VllmConfig]:
    with one_rank() as work:
        yield engine_config(work / "some-model", llama(num_hidden_layers=1))


def attention(config: VllmConfig, size: int, rank: int) -> MiniMaxM2Attention:
    """vLLM's layer as a rank of several builds it, with its norms loaded."""
    with tensor_parallel(size, rank), set_current_vllm_config(config_with(config)):
        layer = MiniMaxM2Attention(
            hidden_size=32,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            rotary_dim=64,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
            head_dim=DIM,
            rms_norm_eps=1e-3,
            prefix="model.layers.0.self_attn",
        )
        for norm, whole in ((layer.k_norm, WEIGHT), (layer.q_norm, QUERY)):
            norm.weight.weight_loader(norm.weight, whole)
    return layer


QUERY = torch.arange(HEADS * DIM).float() * 2


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16])
def test_shards_of_every_rank(config, size: int) -> None:
    """Of 16 ranks two have each head: shards 0, 0, 1, 1, ..., 7, 7."""
    slices = min(size, KV_HEADS)
    rows = KV_HEADS * DIM // slices
    for rank in range(size):
        layer = attention(config, size, rank)
        shard = rank * slices // size
        assert torch.equal(layer.k_norm.weight, WEIGHT[shard * rows : (shard + 1) * rows])
        assert layer.k_norm.weight.shape == (layer.kv_size,)
        assert layer.num_kv_head_replicas == size // slices
        width = HEADS * DIM // size
        assert torch.equal(layer.q_norm.weight, QUERY[rank * width : (rank + 1) * width])


def test_sixteen_ranks_by_number(config) -> None:
    firsts = [int(attention(config, 16, rank).k_norm.weight[0]) // DIM for rank in range(16)]
    assert firsts == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]


@pytest.mark.parametrize("size", [4, 8, 16])
def test_ranks_together_norm_like_one(config, size: int) -> None:
    """`forward_qk` of all ranks, the all-reduce played, equals the norm over all heads."""
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, HEADS * DIM, generator=generator)
    k = torch.randn(3, KV_HEADS * DIM, generator=generator)
    layers = [attention(config, size, rank) for rank in range(size)]
    slices = min(size, KV_HEADS)
    parts = [
        (q.chunk(size, -1)[rank], k.chunk(slices, -1)[rank * slices // size])
        for rank in range(size)
    ]
    variances: list[torch.Tensor] = []
    runs = []
    for reduce in (lambda x: variances.append(x) or x, lambda x: sum(variances)):
        group = SimpleNamespace(world_size=size, rank_in_group=0, all_reduce=reduce)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parallel_state, "_TP", group)
            runs = [
                MiniMaxText01RMSNormTP.forward_qk(layer.q_norm, layer.k_norm, *part)
                for layer, part in zip(layers, parts, strict=True)
            ]
    copies = size // slices
    found = torch.cat([a for a, _ in runs], -1), torch.cat([b for _, b in runs[::copies]], -1)
    for result, x, weight in zip(found, (q, k), (QUERY, WEIGHT), strict=True):
        expected = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-3) * weight
        torch.testing.assert_close(result, expected)


def test_size_that_the_slices_do_not_divide_is_refused(config) -> None:
    refused = pytest.raises(ValueError, match=r"hidden_size 100 is not divisible by .* 8")
    with tensor_parallel(1, 0), set_current_vllm_config(config), refused:
        MiniMaxText01RMSNormTP(100, weight_shard_world_size=8, weight_shard_rank=0)


@pytest.mark.parametrize("rank", range(4))
def test_other_users_have_a_slice_for_each_rank(config, rank: int) -> None:
    assert bailing_moe_linear.BailingRMSNormTP is MiniMaxText01RMSNormTP
    with tensor_parallel(4, rank), set_current_vllm_config(config):
        norm = MiniMaxText01RMSNormTP(16, eps=1e-5)
        assert norm.variance_epsilon == 1e-5
        assert torch.equal(norm.weight, torch.ones(4))
        norm.weight.weight_loader(norm.weight, torch.arange(16.0))
        assert norm.weight.tolist() == [4 * rank + n for n in range(4)]
        bare = nn.Parameter(torch.zeros(4))
        MiniMaxText01RMSNormTP.weight_loader(bare, torch.arange(16.0))  # called as upstream is
        assert torch.equal(bare, norm.weight)


def test_shard_of_rank_zero_is_not_taken_for_none(config) -> None:
    with tensor_parallel(4, 3), set_current_vllm_config(config):
        norm = MiniMaxText01RMSNormTP(16, weight_shard_world_size=2, weight_shard_rank=0)
        norm.weight.weight_loader(norm.weight, torch.arange(16.0))
    assert norm.weight.tolist() == list(range(8))
