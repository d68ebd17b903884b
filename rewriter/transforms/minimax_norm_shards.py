"""Shard the key norm of MiniMax-M2 like its key heads.

Where there are more tensor-parallel ranks than key heads, the heads are
replicated, but the norm's weight is still cut into one slice for each rank:
16 ranks, 8 heads of 128 give it 64 elements for keys of 128. The norm takes
the number of slices, and which of them is the rank's, as arguments now, and
MiniMax-M2 passes those of its key heads, so that ranks with the same head
have the same slice. The mean of the ranks' variances stays right: each head
is on equally many ranks. With at least as many heads as ranks, and for all
other users of the norm, nothing changes, but for a size that the slices do
not divide: that is refused instead of rounded down.
"""

from rewriter.edits import In, add_keyword, add_parameter, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

NORM = "vllm/model_executor/layers/mamba/linear_attn.py"
MODEL = "vllm/model_executor/models/minimax_m2.py"
K_NORM = "MiniMaxText01RMSNormTP(self.head_dim * self.total_num_kv_heads, ...)"

TRANSFORM = Transform(
    seed=("worker/17", "worker/18"),
    tag="Bugfix",
    vllm=">=0.18,<0.21",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/38191, in 0.21.0"),
    remove_when="the base is 0.21.0 or later",
    edits=[
        In(NORM, "MiniMaxText01RMSNormTP.__init__").do(
            add_parameter("weight_shard_world_size: int | None = None", after="eps"),
            add_parameter("weight_shard_rank: int | None = None", after="eps"),
            replace(
                """
self.weight = nn.Parameter(torch.ones(int(hidden_size / self.tp_world)))
self.weight.weight_loader = self.weight_loader
""",
                """
# Replicated heads are cut into fewer slices than there are ranks.
self.weight_shard_world = weight_shard_world_size or self.tp_world
self.weight_shard_rank = (
    self.tp_rank if weight_shard_rank is None else weight_shard_rank
)
if hidden_size % self.weight_shard_world:
    raise ValueError(
        f"hidden_size {hidden_size} is not divisible by "
        f"weight_shard_world_size {self.weight_shard_world}"
    )
self.weight = nn.Parameter(torch.ones(hidden_size // self.weight_shard_world))

self.weight.weight_loader = partial(
    self.weight_loader,
    shard_world_size=self.weight_shard_world,
    shard_rank=self.weight_shard_rank,
)
""",
            ),
            imports="from functools import partial",
        ),
        In(NORM, "MiniMaxText01RMSNormTP.weight_loader").do(
            add_parameter("shard_world_size: int | None = None", after="loaded_weight"),
            add_parameter("shard_rank: int | None = None", after="loaded_weight"),
            replace(
                """
tp_world = get_tensor_model_parallel_world_size()
tp_rank = get_tensor_model_parallel_rank()
shard_size = loaded_weight.shape[0] // tp_world
shard = slice(tp_rank * shard_size, (tp_rank + 1) * shard_size)
""",
                """
if shard_world_size is None:
    shard_world_size = get_tensor_model_parallel_world_size()
if shard_rank is None:
    shard_rank = get_tensor_model_parallel_rank()

shard_size = loaded_weight.shape[0] // shard_world_size
shard = slice(shard_rank * shard_size, (shard_rank + 1) * shard_size)
""",
            ),
        ),
        In(MODEL, "MiniMaxM2Attention.__init__").do(
            insert_after(
                "self.num_kv_heads = max(1, self.total_num_kv_heads // tp_size)",
                "self.num_kv_head_replicas = max(1, tp_size // self.total_num_kv_heads)",
            ),
            add_keyword(K_NORM, weight_shard_world_size="min(tp_size, self.total_num_kv_heads)"),
            add_keyword(
                K_NORM,
                weight_shard_rank="get_tensor_model_parallel_rank() // self.num_kv_head_replicas",
            ),
            imports="from vllm.distributed import get_tensor_model_parallel_rank",
        ),
    ],
    examples=[
        Example(
            NORM,
            before="""\
class MiniMaxText01RMSNormTP(CustomOp):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        self.tp_world = get_tensor_model_parallel_world_size()
        self.tp_rank = get_tensor_model_parallel_rank()
        self.weight = nn.Parameter(torch.ones(int(hidden_size / self.tp_world)))

        self.weight.weight_loader = self.weight_loader
        self.variance_epsilon = eps

    @staticmethod
    def weight_loader(
        param: nn.Parameter,
        loaded_weight: torch.Tensor,
    ) -> None:
        tp_world = get_tensor_model_parallel_world_size()
        tp_rank = get_tensor_model_parallel_rank()

        shard_size = loaded_weight.shape[0] // tp_world
        shard = slice(tp_rank * shard_size, (tp_rank + 1) * shard_size)
        param.data.copy_(loaded_weight[shard])
""",
            after="""\
from functools import partial


class MiniMaxText01RMSNormTP(CustomOp):
    def __init__(
        self,
        hidden_size: int,
        eps: float = 1e-6,
        weight_shard_world_size: int | None = None,
        weight_shard_rank: int | None = None,
    ) -> None:
        self.tp_world = get_tensor_model_parallel_world_size()
        self.tp_rank = get_tensor_model_parallel_rank()
        # Replicated heads are cut into fewer slices than there are ranks.
        self.weight_shard_world = weight_shard_world_size or self.tp_world
        self.weight_shard_rank = (
            self.tp_rank if weight_shard_rank is None else weight_shard_rank
        )
        if hidden_size % self.weight_shard_world:
            raise ValueError(
                f"hidden_size {hidden_size} is not divisible by "
                f"weight_shard_world_size {self.weight_shard_world}"
            )
        self.weight = nn.Parameter(torch.ones(hidden_size // self.weight_shard_world))

        self.weight.weight_loader = partial(
            self.weight_loader,
            shard_world_size=self.weight_shard_world,
            shard_rank=self.weight_shard_rank,
        )
        self.variance_epsilon = eps

    @staticmethod
    def weight_loader(
        param: nn.Parameter,
        loaded_weight: torch.Tensor,
        shard_world_size: int | None = None,
        shard_rank: int | None = None,
    ) -> None:
        if shard_world_size is None:
            shard_world_size = get_tensor_model_parallel_world_size()
        if shard_rank is None:
            shard_rank = get_tensor_model_parallel_rank()

        shard_size = loaded_weight.shape[0] // shard_world_size
        shard = slice(shard_rank * shard_size, (shard_rank + 1) * shard_size)
        param.data.copy_(loaded_weight[shard])
""",
        ),
        Example(
            MODEL,
            before="""\
from vllm.distributed import get_tensor_model_parallel_world_size


class MiniMaxM2Attention(nn.Module):
    def __init__(self, num_heads: int, num_kv_heads: int, rms_norm_eps: float) -> None:
        tp_size = get_tensor_model_parallel_world_size()
        self.num_kv_heads = max(1, self.total_num_kv_heads // tp_size)
        self.q_norm = MiniMaxText01RMSNormTP(
            self.head_dim * self.total_num_heads, eps=rms_norm_eps
        )
        self.k_norm = MiniMaxText01RMSNormTP(
            self.head_dim * self.total_num_kv_heads, eps=rms_norm_eps
        )
""",
            after="""\
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)


class MiniMaxM2Attention(nn.Module):
    def __init__(self, num_heads: int, num_kv_heads: int, rms_norm_eps: float) -> None:
        tp_size = get_tensor_model_parallel_world_size()
        self.num_kv_heads = max(1, self.total_num_kv_heads // tp_size)
        self.num_kv_head_replicas = max(1, tp_size // self.total_num_kv_heads)
        self.q_norm = MiniMaxText01RMSNormTP(
            self.head_dim * self.total_num_heads, eps=rms_norm_eps
        )
        self.k_norm = MiniMaxText01RMSNormTP(
            self.head_dim * self.total_num_kv_heads,
            eps=rms_norm_eps,
            weight_shard_world_size=min(tp_size, self.total_num_kv_heads),
            weight_shard_rank=get_tensor_model_parallel_rank()
            // self.num_kv_head_replicas,
        )
""",
        ),
        Example(
            NORM,
            before="""\
class MiniMaxText01RMSNormTP(CustomOp):
    def __init__(self, hidden_size: int, eps: float = 1e-6) -> None:
        self.weight = nn.Parameter(torch.ones(hidden_size))
""",
            after=None,
        ),
    ],
)
