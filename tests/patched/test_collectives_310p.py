"""P1: collectives of device tensors go through `ascend_runtime.collectives`, as 310P needs it."""

from __future__ import annotations

from types import SimpleNamespace

import gloo_ranks
import pytest
import torch
import torch.distributed as dist
from source_scan import uses
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase
from vllm.distributed.parallel_state import GroupCoordinator
from vllm.v1.worker import gpu_model_runner
from vllm.v1.worker.gpu import pp_utils
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

COMMUNICATOR = "distributed/device_communicators/base_device_communicator.py"
STATE = "distributed/parallel_state.py"
RUNNER = "v1/worker/gpu_model_runner.py"
SENDS, RECEIVES = (
    "_pp_broadcast_prev_sampled_token_ids",
    "_pp_receive_prev_sampled_token_ids_to_input_batch",
)
REWRITTEN = [
    (COMMUNICATOR, "DeviceCommunicatorBase.all_reduce", "all_reduce"),
    (COMMUNICATOR, "DeviceCommunicatorBase.broadcast", "broadcast"),
    (STATE, "GroupCoordinator.broadcast", "broadcast"),
    (STATE, "GroupCoordinator.broadcast_tensor_dict", "broadcast"),
    (STATE, "GroupCoordinator.broadcast_tensor_dict", "broadcast"),
    (RUNNER, f"GPUModelRunner.{SENDS}", "broadcast"),
    (RUNNER, f"GPUModelRunner.{RECEIVES}", "broadcast"),
    ("v1/worker/gpu/pp_utils.py", "pp_broadcast", "broadcast"),
    ("v1/worker/gpu/pp_utils.py", "pp_broadcast", "broadcast"),
    ("v1/worker/gpu/pp_utils.py", "pp_receive", "broadcast"),
    ("v1/worker/gpu/pp_utils.py", "pp_receive", "broadcast"),
]
CPU_GROUP = [
    ("config/parallel.py", "ParallelConfig.has_unfinished_dp", "all_reduce"),
    ("config/parallel.py", "ParallelConfig.sync_kv_cache_memory_size", "all_reduce"),
    (
        "distributed/elastic_ep/elastic_state.py",
        "ElasticEPScalingState._progress_new_engine",
        "all_reduce",
    ),
    (
        "distributed/elastic_ep/elastic_state.py",
        "ElasticEPScalingState._switch_and_prepare",
        "all_reduce",
    ),
    ("distributed/eplb/eplb_state.py", "EplbState._all_ranks_buffer_ready", "all_reduce"),
    (STATE, "GroupCoordinator.broadcast_tensor_dict", "broadcast"),
    (STATE, "GroupCoordinator.broadcast_tensor_dict", "broadcast"),
    (STATE, "in_the_same_node_as", "all_reduce"),
    (
        "v1/executor/uniproc_executor.py",
        "ExecutorWithExternalLauncher.determine_available_memory",
        "all_reduce",
    ),
    ("v1/worker/gpu/dp_utils.py", "sync_cudagraph_and_dp_padding", "all_reduce"),
]
INT32_ON_DEVICE = [
    ("distributed/eplb/eplb_state.py", "EplbState._all_ranks_buffer_ready", "all_reduce"),
    ("distributed/eplb/eplb_state.py", "EplbState._allreduce_list", "all_reduce"),
    ("distributed/eplb/eplb_state.py", "EplbState._allreduce_list", "all_reduce"),
    ("v1/worker/dp_utils.py", "_run_ar", "all_reduce"),
]
OTHER_PLATFORMS = [
    (
        "distributed/device_communicators/cpu_communicator.py",
        "_CPUSHMDistributed._init_cpu_shm",
        "all_reduce",
    ),
    (
        "distributed/device_communicators/cuda_communicator.py",
        "CudaCommunicator.all_reduce",
        "all_reduce",
    ),
    (
        "distributed/device_communicators/cuda_communicator.py",
        "CudaCommunicator.all_reduce",
        "all_reduce",
    ),
    ("distributed/device_communicators/pynccl.py", "PyNcclCommunicator.__init__", "broadcast"),
    (
        "distributed/device_communicators/xpu_communicator.py",
        "XpuCommunicator.all_reduce",
        "all_reduce",
    ),
    (
        "distributed/device_communicators/xpu_communicator.py",
        "XpuCommunicator.broadcast",
        "broadcast",
    ),
    ("v1/worker/xpu_worker.py", "XPUWorker.init_device", "all_reduce"),
]


def collectives(root, prefix: str) -> list[tuple[str, str, str]]:
    """Where a module's `all_reduce` and `broadcast` are used, one entry for each use."""
    names = {f"{prefix}.{name}": name for name in ("all_reduce", "broadcast")}
    found = uses(root, tuple(names.values()))
    return sorted((use.file, use.scope, names[use.name]) for use in found if use.name in names)


def test_each_site_is_rewritten_and_each_forbidden_one_is_not(installed, base) -> None:
    assert len(REWRITTEN) == 11
    assert collectives(installed.site, "ascend_runtime.collectives") == sorted(REWRITTEN)
    left = sorted(CPU_GROUP + INT32_ON_DEVICE + OTHER_PLATFORMS)
    assert collectives(installed.site, "torch.distributed") == left
    assert collectives(base.root, "torch.distributed") == sorted(REWRITTEN + left)


def test_object_lists_stay_with_torch(installed, base) -> None:
    def lists(root) -> list:
        return [u for u in uses(root, ("broadcast_object_list",)) if "object_list" in u.name]

    assert lists(installed.site) == lists(base.root) != []


# What the sites do, on four gloo ranks that have to do as 310P does.

RANKS = 4


def coordinator(ranks: list[int], group: dist.ProcessGroup) -> GroupCoordinator:
    """A group of vLLM's, less what its initialisation asks of a platform."""
    made = GroupCoordinator.__new__(GroupCoordinator)
    rank = dist.get_rank()
    vars(made).update(
        ranks=ranks,
        rank=rank,
        world_size=len(ranks),
        rank_in_group=ranks.index(rank),
        device_group=group,
        cpu_group=group,
        device=torch.device("cpu"),
        mq_broadcaster=None,
    )
    return made


def numbers(rank: int, group: dist.ProcessGroup) -> dict[str, object]:
    """What a rank gets from each site; it holds its rank + 1, or ten times its rank."""
    ranks = [2, 3] if rank in (2, 3) else [0, 1]
    communicator = DeviceCommunicatorBase(group, torch.device("cpu"), group)
    mine = coordinator(ranks, group)
    tensor = torch.tensor([rank + 1])
    reduced = communicator.all_reduce(tensor)
    got = {"all_reduce": (reduced is tensor, tensor.tolist())}
    got["communicator"] = communicator.broadcast(torch.tensor([rank * 10]), 1).tolist()
    got["coordinator"] = mine.broadcast(torch.tensor([rank * 10]), 1).tolist()
    stages = SimpleNamespace(
        rank=rank,
        last_rank=ranks[-1],
        is_last_rank=rank == ranks[-1],
        device_group=group,
        device=torch.device("cpu"),
    )
    for module in (pp_utils, gpu_model_runner):
        module.get_pp_group = lambda: stages
    got["V2"] = hand_over_v2(rank, stages.is_last_rank)
    got["V1"] = hand_over_v1(rank, stages.is_last_rank)
    return got


def hand_over_v2(rank: int, last: bool) -> list:
    if last:
        tokens = torch.tensor([[7, 2**40 + rank], [8, 9]]).t()  # not contiguous
        counts = torch.tensor([1, 2], dtype=torch.int32)
        pp_utils.pp_broadcast(tokens, counts, counts + 3)
        return [tokens.tolist(), counts.tolist(), (counts + 3).tolist()]
    return [part.tolist() for part in pp_utils.pp_receive(2, 2)]


def hand_over_v1(rank: int, last: bool) -> list:
    batch = SimpleNamespace(num_reqs=2, req_ids=["a", "b"], prev_sampled_token_ids=None)
    runner = SimpleNamespace(
        input_batch=batch,
        requests={},
        device=torch.device("cpu"),
        discard_request_mask=SimpleNamespace(np=torch.tensor([False, False]).numpy()),
    )
    tokens = torch.tensor([[rank], [rank + 40]], dtype=torch.int32)
    if last:
        getattr(GPUModelRunner, SENDS)(runner, tokens)
        return tokens.tolist()
    getattr(GPUModelRunner, RECEIVES)(runner)
    return batch.prev_sampled_token_ids.tolist()


def run_rank(rank: int) -> dict[str, object]:
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    calls = []
    for name in ("all_reduce", "broadcast"):
        setattr(dist, name, lambda *a, _n=name, **k: calls.append(_n))
    return {**numbers(rank, groups[rank // 2]), "torch's": calls}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each rank got."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASCEND_RUNTIME_FORCE_310P", "1")
        return gloo_ranks.run(run_rank, RANKS, tmp_path_factory.mktemp("gloo"))


def test_nothing_took_the_short_way(answers) -> None:
    """Those of torch are stand-ins that only note the call: every result came another way."""
    assert [answer["torch's"] for answer in answers] == [[]] * RANKS


def test_reduction_is_in_the_argument(answers) -> None:
    assert [answer["all_reduce"] for answer in answers] == [
        (True, [3]),
        (True, [3]),
        (True, [7]),
        (True, [7]),
    ]


@pytest.mark.parametrize("site", ["communicator", "coordinator"])
def test_broadcast_within_a_group_that_is_not_the_first(answers, site: str) -> None:
    assert [answer[site] for answer in answers] == [[10], [10], [30], [30]]


def test_sampled_tokens_of_the_last_stage_v2(answers) -> None:
    for answer, last in zip(answers, (1, 1, 3, 3), strict=True):
        assert answer["V2"] == [[[7, 8], [2**40 + last, 9]], [1, 2], [4, 5]]


def test_sampled_tokens_of_the_last_stage_v1(answers) -> None:
    for answer, last in zip(answers, (1, 1, 3, 3), strict=True):
        assert answer["V1"] == [[last], [last + 40]]


def test_off_310p_the_call_reaches_torch_as_it_was(monkeypatch) -> None:
    calls = []
    monkeypatch.delenv("ASCEND_RUNTIME_FORCE_310P", raising=False)
    monkeypatch.setattr(dist, "broadcast", lambda *a: calls.append(a))
    group = object()
    tensor = torch.zeros(1)
    made = GroupCoordinator.__new__(GroupCoordinator)
    vars(made).update(ranks=[5, 9], world_size=2, device_group=group)
    assert parallel_state.GroupCoordinator.broadcast(made, tensor, 1) is tensor
    assert calls == [(tensor, 9, group, False, None)]
