"""Poll with time.sleep(0) instead of os.sched_yield() on Arm.

`os.sched_yield()` does not hand the core over on Arm servers: the polling
loops of the message queue starve the processes that they wait for. The
constant that chooses between the two is false on Arm now; the architecture
is the condition, not the accelerator.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/distributed/utils.py"
TODAY = """
(sys.version_info[:3] >= (3, 11, 1)) or (
    sys.version_info[:2] == (3, 10) and sys.version_info[2] >= 8
)
"""

TRANSFORM = Transform(
    seed="platform/4",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.denied("https://github.com/vllm-project/vllm/pull/30228, closed unmerged"),
    remove_when="vLLM asks for the architecture before it uses os.sched_yield",
    monkey_patch_lines=12,
    edits=[
        In(FILE, "USE_SCHED_YIELD").do(
            # Without the outer parentheses the condition would guard the second half only.
            replace(TODAY, f"({TODAY}) and Platform.get_cpu_architecture() != CpuArchEnum.ARM"),
            imports="from vllm.platforms.interface import CpuArchEnum, Platform",
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import sys

from vllm.logger import init_logger

USE_SCHED_YIELD = (sys.version_info[:3] >= (3, 11, 1)) or (
    sys.version_info[:2] == (3, 10) and sys.version_info[2] >= 8
)
""",
            after="""\
import sys

from vllm.logger import init_logger
from vllm.platforms.interface import CpuArchEnum, Platform

USE_SCHED_YIELD = (
    (sys.version_info[:3] >= (3, 11, 1))
    or (sys.version_info[:2] == (3, 10) and sys.version_info[2] >= 8)
) and Platform.get_cpu_architecture() != CpuArchEnum.ARM
""",
        ),
        Example(FILE, before="USE_SCHED_YIELD = True\n", after=None),
    ],
)
