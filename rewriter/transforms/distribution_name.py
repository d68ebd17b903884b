"""Ask for the metadata of the distribution that vLLM really came in.

vLLM asks `importlib.metadata` for the distribution `vllm` in four places.
In the wheel that is called `vllm-ascend-patched` there is none, and every
`vllm` command dies of it. The name is looked up now, so that the same
sources are right in both wheels.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

NAME = "ascend_runtime.distribution.name()"
VERSION = 'importlib.metadata.version("vllm")'
ANY_VERSION = f"importlib.metadata.version({NAME})"
MAIN = "vllm/entrypoints/cli/main.py"

TRANSFORM = Transform(
    seed=(),
    tag="Misc",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("only a distribution of another name needs it"),
    remove_when="the renamed wheel is given up",
    edits=[
        In(MAIN, "main").do(replace(VERSION, ANY_VERSION)),
        In("vllm/entrypoints/cli/run_batch.py", "RunBatchSubcommand.cmd").do(
            replace(VERSION, ANY_VERSION),
        ),
        In("vllm/platforms/__init__.py", "vllm_version_matches_substr").do(
            replace('version("vllm")', f"version({NAME})"),
        ),
        In("vllm/utils/import_utils.py", "get_vllm_optional_dependencies").do(
            replace('importlib.metadata.metadata("vllm")', f"importlib.metadata.metadata({NAME})"),
        ),
    ],
    examples=[
        Example(
            MAIN,
            before="""\
import importlib.metadata


def main(parser):
    parser.add_argument("--version", version=importlib.metadata.version("vllm"))
""",
            after="""\
import importlib.metadata

import ascend_runtime.distribution


def main(parser):
    parser.add_argument(
        "--version",
        version=importlib.metadata.version(ascend_runtime.distribution.name()),
    )
""",
        ),
    ],
)
