"""Gather the positions of EAGLE drafts without an out= argument.

The V2 speculator gathers each request's last position straight into a view
of a buffer that stays, with `torch.gather(..., out=pos)`, which NPUs do not
do for such a view. Indexing and copying into the view gives the same
values in the same place: later steps advance the positions in the buffer,
and the slot mapping sees them through the view. It costs one temporary of
eight bytes for each request.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/v1/worker/gpu/spec_decode/eagle/speculator.py"

TRANSFORM = Transform(
    seed="worker/10",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport("0.20.0 indexes and assigns"),
    remove_when="the base is 0.20.0 or later",
    edits=[
        In(FILE, "EagleSpeculator.propose").do(
            replace(
                "torch.gather(input_batch.positions, 0, last_token_indices, out=pos)",
                "pos.copy_(input_batch.positions[last_token_indices])",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


class EagleSpeculator:
    def propose(self, input_batch, num_reqs, last_token_indices):
        pos = self.input_buffers.positions[:num_reqs]
        torch.gather(input_batch.positions, 0, last_token_indices, out=pos)
        return pos
""",
            after="""\
import torch


class EagleSpeculator:
    def propose(self, input_batch, num_reqs, last_token_indices):
        pos = self.input_buffers.positions[:num_reqs]
        pos.copy_(input_batch.positions[last_token_indices])
        return pos
""",
        ),
        Example(
            FILE,
            before="""\
import torch


class EagleSpeculator:
    def propose(self, positions, indices):
        return torch.gather(positions, 0, indices)
""",
            after=None,
        ),
    ],
)
