"""Let out-of-tree platforms bind several KV caches to one layer.

With a draft model or cross attention several layer names share a layer
index. `bind_kv_cache` knows that the GPU and CPU runners do not mind and
refuses on every other platform. The runner of a platform plugin is derived
from the GPU runner and does not mind either. All caches are bound, not just
the first.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/utils.py"
TODAY = """
current_platform.is_cuda_alike()
or current_platform.is_xpu()
or current_platform.is_cpu()
"""

TRANSFORM = Transform(
    seed="worker/5",
    tag="Platform",
    vllm=">=0.18",
    upstream=Upstream.pending(
        "0.33.0 asks the platform instead: https://github.com/vllm-project/vllm/pull/51633"
    ),
    remove_when="the base asks the platform, as 0.33.0 does",
    edits=[
        In(FILE, "bind_kv_cache").do(
            replace(TODAY, f"{TODAY} or current_platform.is_out_of_tree()"),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
def bind_kv_cache(kv_caches):
    for layer_names in kv_caches:
        if len(layer_names) > 1:
            if (
                current_platform.is_cuda_alike()
                # the second
                or current_platform.is_xpu()
                or current_platform.is_cpu()
            ):
                pass
            else:
                raise NotImplementedError
""",
            after="""\
def bind_kv_cache(kv_caches):
    for layer_names in kv_caches:
        if len(layer_names) > 1:
            if (
                current_platform.is_cuda_alike()
                # the second
                or current_platform.is_xpu()
                or current_platform.is_cpu()
                or current_platform.is_out_of_tree()
            ):
                pass
            else:
                raise NotImplementedError
""",
        ),
    ],
)
