"""Two processes that end while their executor is up, its workers not being daemonic.

An engine that fails after its executor has started: its process joins the workers before it
would call any finalizer. And a main program with a `weakref.finalize` older than its import of
multiprocessing: at exit the join comes first, too. Prints what happens; it must end by itself.
"""

# ruff: noqa: E402

import tempfile

OLDER = tempfile.TemporaryDirectory()  # registers its weakref.finalize

import sys

assert "multiprocessing.util" not in sys.modules

import multiprocessing
import os
from types import SimpleNamespace

os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

from vllm.v1.executor.multiproc_executor import MultiprocExecutor, WorkerProc

PARALLEL = SimpleNamespace(
    world_size=1,
    local_world_size=1,
    nnodes_within_dp=1,
    node_rank_within_dp=0,
    node_rank=0,
    master_addr="",
    tensor_parallel_size=1,
    pipeline_parallel_size=1,
    prefill_context_parallel_size=1,
)


def init_worker(self, vllm_config, rank, input_shm_handle, **rest):
    """Set up vLLM's worker process without a model; its queues and its loop are the real ones."""
    self.rank = rank
    self.use_async_scheduling = False
    self.worker = SimpleNamespace(rank=rank, shutdown=lambda: None, answer=lambda: "answers")
    self._init_message_queues(input_shm_handle, vllm_config)


def start():
    """Start a real executor with one real worker."""
    executor = MultiprocExecutor.__new__(MultiprocExecutor)
    executor.monitor_workers = True
    executor.parallel_config = PARALLEL
    executor.vllm_config = SimpleNamespace(parallel_config=PARALLEL)
    executor._init_executor()
    (answer,) = executor.collective_rpc("answer")
    print(f"worker {answer}, daemon {executor.workers[0].proc.daemon}", flush=True)


def engine():
    """Fail where an engine does that finds no memory."""
    start()
    raise ValueError("no memory for the KV cache")


WorkerProc.__init__ = init_worker
process = multiprocessing.get_context("fork").Process(target=engine)
process.start()
process.join()
print(f"engine ended with {process.exitcode}", flush=True)
start()
print("end of the main module", flush=True)
