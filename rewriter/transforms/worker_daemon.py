"""Let executor workers start processes of their own.

Workers are daemonic, and Python forbids daemonic processes to have
children. Dynamic expert load balancing starts one in each worker (and a
`multiprocessing.Manager`), so there the workers must not be daemonic.
`ascend_runtime.executor.worker_daemon` reads the two environment variables
that switch the balancing on, DYNAMIC_EPLB and EXPERT_MAP_RECORD, when a
worker is created; without them workers stay daemonic. The other
`daemon=True` of the file belong to threads and are left alone.

At exit Python terminates daemonic processes but joins the others, and the
workers wait for their executor to shut down first. Nothing else shuts it
down where the engine fails after its executor has started, for want of KV
cache memory say, or where a `weakref.finalize` is older than the import of
multiprocessing: both would hang for ever. So the executor also registers
its shutdown with multiprocessing, to come before the join.
"""

from rewriter.edits import In, insert_after, set_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/executor/multiproc_executor.py"

TRANSFORM = Transform(
    seed="platform/3",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the switches are environment variables of Ascend's balancer"),
    remove_when="vLLM lets a platform choose the daemon flag of its workers",
    monkey_patch_lines=211,
    edits=[
        In(FILE, "MultiprocExecutor._init_executor").do(
            insert_after(
                "self._finalizer = weakref.finalize(self, self.shutdown)",
                "ascend_runtime.executor.shut_down_before_join(self._finalizer)",
            ),
        ),
        In(FILE, "WorkerProc.make_worker_process").do(
            set_keyword(
                "context.Process(..., target=WorkerProc.worker_main)",
                was="True",
                daemon="ascend_runtime.executor.worker_daemon()",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import threading
import weakref


class MultiprocExecutor:
    def _init_executor(self):
        self._finalizer = weakref.finalize(self, self.shutdown)
        self.is_failed = False


class WorkerProc:
    @staticmethod
    def make_worker_process(context, rank, process_kwargs):
        threading.Thread(target=print, daemon=True).start()
        proc = context.Process(
            target=WorkerProc.worker_main,
            kwargs=process_kwargs,
            name=f"VllmWorker-{rank}",
            daemon=True,
        )
        proc.start()
""",
            after="""\
import threading
import weakref

import ascend_runtime.executor


class MultiprocExecutor:
    def _init_executor(self):
        self._finalizer = weakref.finalize(self, self.shutdown)
        ascend_runtime.executor.shut_down_before_join(self._finalizer)
        self.is_failed = False


class WorkerProc:
    @staticmethod
    def make_worker_process(context, rank, process_kwargs):
        threading.Thread(target=print, daemon=True).start()
        proc = context.Process(
            target=WorkerProc.worker_main,
            kwargs=process_kwargs,
            name=f"VllmWorker-{rank}",
            daemon=ascend_runtime.executor.worker_daemon(),
        )
        proc.start()
""",
        ),
        Example(
            FILE,
            before="""\
class WorkerProc:
    def make_worker_process(context):
        return context.Process(target=WorkerProc.worker_main)
""",
            after=None,
        ),
    ],
)
