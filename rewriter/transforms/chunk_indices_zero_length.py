"""Number the chunks of gated delta nets rightly beside an empty sequence.

`prepare_chunk_indices` tells, for each chunk, the number of its sequence,
which it found by counting the chunks that come first in one. An empty
sequence has none, so every later sequence got the number of the one before
it and read another's offsets and states: lengths 130, 0, 64 gave the last
chunk to sequence 1. Now each number is repeated as often as its sequence
has chunks. Without empty sequences the result is the same.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/layers/fla/ops/index.py"

TRANSFORM = Transform(
    seed=(),
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending(),
    remove_when="vLLM numbers the sequences without counting first chunks",
    edits=[
        In(FILE, "prepare_chunk_indices").do(
            replace(
                """
indices = torch.cat(
    [
        torch.arange(n)
        for n in triton.cdiv(prepare_lens(cu_seqlens), chunk_size).tolist()
    ]
)
return torch.stack([indices.eq(0).cumsum(0) - 1, indices], 1).to(cu_seqlens)
""",
                """
counts = triton.cdiv(prepare_lens(cu_seqlens), chunk_size).cpu()
indices = torch.cat([torch.arange(n) for n in counts.tolist()])
sequences = torch.arange(len(counts)).repeat_interleave(counts)
return torch.stack([sequences, indices], 1).to(cu_seqlens)
""",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
import torch


@tensor_cache
def prepare_chunk_indices(
    cu_seqlens: torch.LongTensor, chunk_size: int
) -> torch.LongTensor:
    indices = torch.cat(
        [
            torch.arange(n)
            for n in triton.cdiv(prepare_lens(cu_seqlens), chunk_size).tolist()
        ]
    )
    return torch.stack([indices.eq(0).cumsum(0) - 1, indices], 1).to(cu_seqlens)
""",
            after="""\
import torch


@tensor_cache
def prepare_chunk_indices(
    cu_seqlens: torch.LongTensor, chunk_size: int
) -> torch.LongTensor:
    counts = triton.cdiv(prepare_lens(cu_seqlens), chunk_size).cpu()
    indices = torch.cat([torch.arange(n) for n in counts.tolist()])
    sequences = torch.arange(len(counts)).repeat_interleave(counts)
    return torch.stack([sequences, indices], 1).to(cu_seqlens)
""",
        ),
        Example(
            FILE,
            before="""\
def prepare_chunk_indices(cu_seqlens, chunk_size):
    return torch.arange(chunk_size)
""",
            after=None,
        ),
    ],
)
