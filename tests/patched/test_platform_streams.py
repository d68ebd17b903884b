"""W15: streams, events and free memory are those of the platform's device."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from patched_kit import npu_scene
from platform_kit import on_platform
from source_scan import uses
from vllm.distributed import parallel_state
from vllm.distributed.weight_transfer import packed_tensor
from vllm.utils import torch_utils
from vllm.v1.spec_decode import ngram_proposer_gpu as ngram
from vllm.v1.worker.gpu import async_utils
from vllm.v1.worker.gpu.spec_decode import utils as drafts

WAS, IS = "torch.cuda.", "vllm.platforms.current_platform."
#: The names that moved, and how often they did.
MOVED = {
    "Stream": 15,
    "Event": 10,
    "stream": 15,
    "current_stream": 18,
    "mem_get_info": 6,
    "is_current_stream_capturing": 3,
    "graph_pool_handle": 1,
}


def test_each_name_moved_and_nothing_else(base, installed) -> None:
    """Annotations name types of torch.cuda still; they are neither counted nor touched."""
    words = ("torch.cuda", "current_platform")
    before, after = (Counter(uses(root, words)) for root in (base.root, installed.site))
    gone = Counter({use: n for use, n in (before - after).items() if use.name.startswith(WAS)})
    come = Counter({use: n for use, n in (after - before).items() if use.name.startswith(IS)})
    sites = {(u.file, u.scope, u.name.removeprefix(WAS)): n for u, n in gone.items()}
    found = {(u.file, u.scope, u.name.removeprefix(IS)): n for u, n in come.items()}
    moved = {site: n for site, n in sites.items() if site[2] in MOVED}
    assert moved == {site: n for site, n in found.items() if site[2] in MOVED}
    names: Counter[str] = Counter()
    for site, n in moved.items():
        names[site[2]] += n
    assert names == MOVED


@pytest.mark.parametrize(
    ("kind", "module"), [("cuda", torch.cuda), ("rocm", torch.cuda), ("xpu", torch.xpu)]
)
@pytest.mark.parametrize("name", MOVED)
def test_the_platform_gives_the_names_of_its_device(kind: str, module, name: str) -> None:
    """vLLM's XPU runner puts the same ones into torch.cuda."""
    with on_platform(kind) as platform:
        assert getattr(platform, name) is getattr(module, name)


def transfer() -> None:
    packed_tensor.packed_broadcast_producer(iter(()), None, 0, lambda item: item)


def capture() -> None:
    with parallel_state.GroupCoordinator.graph_capture(SimpleNamespace(device_communicator=None)):
        pass


def copy_counts() -> list[int]:
    counts = torch.zeros(3, dtype=torch.int32)
    stream, event = torch.cpu.Stream(), torch.cpu.Event()
    ngram.copy_num_valid_draft_tokens(counts, stream, event, torch.tensor([4, 5, 6]), 2)
    return counts.tolist()


@pytest.mark.parametrize("kind", ["cuda", "rocm"])
@pytest.mark.parametrize("call", [transfer, capture, copy_counts, drafts.DraftTokensHandler])
def test_cuda_is_asked_as_before(kind: str, call) -> None:
    """This build of torch has none, and says so."""
    with (
        on_platform(kind, packed_tensor, ngram, drafts),
        pytest.raises((RuntimeError, AssertionError), match=r"CUDA|dummy base class"),
    ):
        call()


def test_streams_of_the_cpu() -> None:
    batch = SimpleNamespace(req_ids=["x"], has_structured_output_reqs=True)
    with on_platform("cpu", ngram, drafts):
        assert copy_counts() == [4, 5, 0]
        handler = drafts.DraftTokensHandler(torch.device("cpu"))
        handler.set_draft_tokens(batch, torch.tensor([[1, 2]]))
        assert type(handler.copy_stream) is torch.cpu.Stream
        assert handler.get_draft_tokens().draft_token_ids == [[1, 2]]


def test_graph_capture_joins_custom_allreduce_where_there_is_one(monkeypatch) -> None:
    log = []

    @contextmanager
    def joined():
        log.append("in")
        yield
        log.append("out")

    monkeypatch.setattr(torch.cpu.Stream, "wait_stream", lambda *both: log.append("wait"))
    with on_platform("cpu"):
        for communicator in (
            None,
            object(),
            SimpleNamespace(ca_comm=None),
            SimpleNamespace(ca_comm=SimpleNamespace(capture=joined)),
        ):
            group = SimpleNamespace(device_communicator=communicator)
            before = torch.cpu.current_stream()
            with parallel_state.GroupCoordinator.graph_capture(group) as context:
                assert torch.cpu.current_stream() is context.stream is not before
                log.append("captured")
            assert torch.cpu.current_stream() is before
    assert log == ["wait", "captured"] * 3 + ["wait", "in", "captured", "out"]


def test_current_stream_is_kept_where_it_is_tracked_only(monkeypatch) -> None:
    kept = SimpleNamespace(value=None)
    monkeypatch.setattr(torch_utils, "_current_stream_tls", kept)
    streams = iter("ab")
    monkeypatch.setattr(torch.xpu, "current_stream", lambda: next(streams))
    with on_platform("xpu"):
        assert [torch_utils.current_stream(), torch_utils.current_stream()] == ["a", "b"]
    assert kept.value is None
    with on_platform("cpu"):
        assert torch_utils.current_stream() is torch_utils.current_stream() is kept.value
    kept.value = "tracked"
    with on_platform("cuda"):
        assert torch_utils.current_stream() == "tracked"


def test_sets_of_streams_are_tracked_through_the_platform() -> None:
    with on_platform("cuda") as platform:
        assert platform.set_stream is torch_utils._patched_set_stream


scene = partial(npu_scene, "npu_stream_scenes.py")


def test_packed_weights_on_the_npu() -> None:
    """Two buffers take turns, each on a stream of its own, and the tail is sent too."""
    assert scene("packed") == {
        "bytes": [24, 22, 4],
        "kinds": [["npu", "torch.uint8", 3]],
        "streams": [0, 1, 0, 3, 4, 3],
        "own": True,
        "same": dict.fromkeys("abcde", True),
    }


def test_drafts_on_the_npu() -> None:
    assert scene("drafts") == {
        "drafts": [[1, 2], [3, 4]],
        "counts": [5, 6, 0, 0],
        "kernel": [[3, 1], [2, 0, 1], [[1, 2], [3, 4], [5, 6]], "npu", True],
        "types": [True, True, True],
        "event": [True, "npu"],
        "waits": [[1, 0], [2, 0], [3, 0]],
    }


def test_outputs_on_the_npu() -> None:
    assert scene("outputs") == {
        "sampled": [[5], []],
        "pooled": [[1.0], None],
        "drafts": [[8, 9], [0, 0]],
        "counts": [3, 0],
        "waits": [True] * 4,
    }


def test_kv_blocks_on_the_npu() -> None:
    """Only what is read from the device waits for the model."""
    zeros = [0.0, 0.0, 0.0]
    assert scene("offload") == {
        "copied": [["npu", "cpu", 12, True], ["cpu", "npu", 12, True]],
        "types": [["GPU", "CPU"], ["CPU", "GPU"]],
        "kept": [[3.0, 4.0, 5.0], zeros, [9.0, 10.0, 11.0], zeros],
        "cache": [9.0, 10.0, 11.0],
        "waits": [True],
    }


def test_prefetched_weights_on_the_npu() -> None:
    assert scene("prefetch") == {
        "same": True,
        "stream": True,
        "event": "npu",
        "used": [True, True, True],
        "copies": True,
    }


def test_experts_on_the_npu() -> None:
    assert scene("experts") == {
        "thread": [True, "npu:1", 1, True],
        "moved": 5,
        "layer": [1, 0, None],
        "consumed": [True, True],
    }


def test_second_runner_on_the_npu() -> None:
    """Its copies are on the other stream, its graph is of the device's own class."""
    assert scene("switch") == {
        "tokens": [[5, 6], [7]],
        "copies": [True, True],
        "back": True,
        "graphs": [
            ["in", False, None],
            "NONE",
            ["in", True, "pool"],
            "NONE",
            "out",
            "out",
        ],
        "kept": "NPUGraph",
    }


def test_second_runner_asks_cuda_as_before() -> None:
    """This build of torch has none, and says so; the stream given is tracked before that."""
    stream = async_utils.stream("to", "from")
    with on_platform("cuda"), pytest.raises(AttributeError, match="stream_id"):
        stream.__enter__()
    assert torch_utils._current_stream_tls.value == "from"
    torch_utils._current_stream_tls.value = None


def test_groups_on_the_npu() -> None:
    assert scene("groups") == {
        "capture": True,
        "given": True,
        "waits": [True, True],
        "sent": [["npu", 6, "device"], ["cpu", 6, "host"]],
        "kept": [[[1, 2], True]],
        "current": [True, True],
        "back": True,
    }
