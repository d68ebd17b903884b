"""Put the buffer of routed experts on the platform's device.

The buffer of `RoutedExpertsCapturer` was created on "cuda" once. vLLM
0.18.0 has the platform's device type there already, and this transform
proves it: on such a base it changes nothing. On an older tree it makes the
same change.
"""

from rewriter.edits import In, set_keyword
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/layers/fused_moe/routed_experts_capturer.py"

TRANSFORM = Transform(
    seed="worker/15",
    tag="Bugfix",
    vllm=">=0.17",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/34336, in 0.18.0"),
    remove_when="bases before 0.18.0 are of no interest",
    edits=[
        In(FILE, "RoutedExpertsCapturer.init_buffer").do(
            set_keyword("torch.zeros(...)", was='"cuda"', device="current_platform.device_type"),
            imports="from vllm.platforms import current_platform",
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


class RoutedExpertsCapturer:
    def init_buffer(self, shape):
        self._device_buffer = torch.zeros(shape, dtype=torch.int32, device="cuda")
""",
            after="""\
import torch

from vllm.platforms import current_platform


class RoutedExpertsCapturer:
    def init_buffer(self, shape):
        self._device_buffer = torch.zeros(
            shape, dtype=torch.int32, device=current_platform.device_type
        )
""",
        ),
        Example(
            FILE,
            before="""\
class RoutedExpertsCapturer:
    def init_buffer(self, shape):
        self._device_buffer = torch.zeros(shape, device="xpu")
""",
            after=None,
        ),
    ],
)
