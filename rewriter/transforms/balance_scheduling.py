"""Admit requests on all data-parallel ranks in the same steps.

The ranks of a mixture-of-experts model run in lock step, so one rank that
prefills slows the decoding of all. With VLLM_ASCEND_BALANCE_SCHEDULING=1
each rank tells the others, after every iteration that ran something, how
many requests it runs. While one of them runs `max_num_seqs` - 1 or more (and
at least one), none takes requests from its queue; running requests go on.
Then all admit together, each up to its own limit.

The switch is read when a scheduler is made, and must be the same on all
ranks, which would wait for each other otherwise. Off, the scheduler is
upstream's. Only the busy loop of mixture-of-experts models with several
data-parallel ranks gathers; elsewhere the counts stay zero and nothing is
ever held. A scheduler class of its own that does not inherit `schedule` must
ask `ascend_runtime.balance.hold` itself.

It is a trade: ranks leave places free while another one is full. Throughput
and the time per output token gain, and the time to first token may suffer.
It is not advised with prefill and decode in separate instances. Each
iteration costs a small gather on the CPU.
"""

from rewriter.edits import In, add_member, insert_after
from rewriter.transform import Example, Transform, Upstream

SCHEDULER = "vllm/v1/core/sched/scheduler.py"
CORE = "vllm/v1/engine/core.py"

TRANSFORM = Transform(
    seed="platform/5",
    tag="Core",
    vllm=">=0.18",
    upstream=Upstream.denied(
        "https://github.com/vllm-project/vllm/pull/29721, closed unmerged;"
        " 0.24.0 throttles prefills in a way of its own"
    ),
    remove_when="vLLM's own throttling of prefills serves Ascend as well",
    monkey_patch_lines=706,
    edits=[
        In(SCHEDULER, "Scheduler.__init__").do(
            insert_after(
                "self.running: list[Request] = []",
                """
                # How many requests each data-parallel rank runs; None if not balanced.
                self.balance_counts = ascend_runtime.balance.initial_counts(
                    self.parallel_config.data_parallel_size
                )
                """,
            ),
        ),
        In(SCHEDULER, "Scheduler.schedule").do(
            insert_after(
                """
                if len(self.running) == self.max_num_running_reqs:
                    break
                """,
                """
                if ascend_runtime.balance.hold(
                    self.balance_counts, self.max_num_running_reqs
                ):
                    break
                """,
            ),
        ),
        In(SCHEDULER, "Scheduler").do(
            add_member(
                '''
                def balance_gather(self, dp_group) -> None:
                    """Learn how many requests each data-parallel rank runs."""
                    self.balance_counts = ascend_runtime.balance.gather(
                        len(self.running), dp_group
                    )
                ''',
                after="schedule",
            ),
        ),
        In(CORE, "DPEngineCoreProc.run_busy_loop").do(
            insert_after(
                """
                self.engines_running = self._has_global_unfinished_reqs(
                    local_unfinished_reqs
                )
                """,
                "ascend_runtime.balance.after_step(self.scheduler, self.dp_group)",
            ),
        ),
    ],
    examples=[
        Example(
            SCHEDULER,
            before="""\
from vllm.v1.request import Request


class Scheduler:
    def __init__(self):
        self.waiting = create_request_queue(self.policy)
        self.running: list[Request] = []

    def schedule(self):
        while self.waiting and token_budget > 0:
            if len(self.running) == self.max_num_running_reqs:
                break

            request = self.waiting.peek_request()

    def update_from_output(self):
        pass
""",
            after='''\
import ascend_runtime.balance

from vllm.v1.request import Request


class Scheduler:
    def __init__(self):
        self.waiting = create_request_queue(self.policy)
        self.running: list[Request] = []
        # How many requests each data-parallel rank runs; None if not balanced.
        self.balance_counts = ascend_runtime.balance.initial_counts(
            self.parallel_config.data_parallel_size
        )

    def schedule(self):
        while self.waiting and token_budget > 0:
            if len(self.running) == self.max_num_running_reqs:
                break
            if ascend_runtime.balance.hold(
                self.balance_counts, self.max_num_running_reqs
            ):
                break

            request = self.waiting.peek_request()

    def balance_gather(self, dp_group) -> None:
        """Learn how many requests each data-parallel rank runs."""
        self.balance_counts = ascend_runtime.balance.gather(len(self.running), dp_group)

    def update_from_output(self):
        pass
''',
        ),
        Example(
            CORE,
            before="""\
class DPEngineCoreProc:
    def run_busy_loop(self):
        while self._handle_shutdown():
            self.engines_running = self._has_global_unfinished_reqs(
                local_unfinished_reqs
            )

            if not self.engines_running:
                self.step_counter = 0
""",
            after="""\
import ascend_runtime.balance


class DPEngineCoreProc:
    def run_busy_loop(self):
        while self._handle_shutdown():
            self.engines_running = self._has_global_unfinished_reqs(
                local_unfinished_reqs
            )
            ascend_runtime.balance.after_step(self.scheduler, self.dp_group)

            if not self.engines_running:
                self.step_counter = 0
""",
        ),
        Example(
            CORE,
            before="""\
class EngineCoreProc:
    def run_busy_loop(self):
        while self._handle_shutdown():
            self._process_input_queue()
            self._process_engine_step()
""",
            after=None,
        ),
    ],
)
