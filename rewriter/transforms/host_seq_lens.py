"""Keep the sequence lengths of the second model runner on the host too.

Attention operators that plan on the host need the length of each sequence
there; the second model runner has them on the device only, and asking the
device stalls the step. `InputBatch` gets 0.20.0's field for them,
`seq_lens_cpu_upper_bound`: int32, in batch order, 0 for padding. The runner
fills it from the number of computed tokens that the scheduler sends for
each running request in every step, and from the request's own for a new
one. Dummy batches have it as well; their other tensors stay those of the
persistent buffers, whose addresses graphs record.

The scheduler's numbers are exact, but for steps in flight: with
asynchronous scheduling, drafts of the step before count as accepted until
their fate is known. 0.20.0 adds up what was scheduled instead, so its bound
rises by every draft that was ever rejected.

The field is for keywords only and has a default, so that subclasses of the
dataclass with fields of their own stay possible.
"""

from rewriter.edits import In, add_keyword, add_member, insert_after, insert_before
from rewriter.transform import Example, Transform, Upstream

BATCH = "vllm/v1/worker/gpu/input_batch.py"
STATES = "vllm/v1/worker/gpu/states.py"
RUNNER = "vllm/v1/worker/gpu/model_runner.py"
FIELD = """
# [num_reqs_after_padding] on the host, int32. Exact, except that drafts of
# steps in flight count as accepted.
seq_lens_cpu_upper_bound: torch.Tensor | None = field(default=None, kw_only=True)
"""
RECEIVE = """
req_indices = [self.req_states.req_id_to_index[req_id] for req_id in reqs.req_ids]
self.req_states.num_computed_tokens_np[req_indices] = reqs.num_computed_tokens
"""
FILL = """
seq_lens_np = np.zeros(num_reqs_padded, dtype=np.int32)
np.add(
    self.req_states.num_computed_tokens_np[idx_mapping_np],
    num_scheduled_tokens,
    out=seq_lens_np[:num_reqs],
)
"""

TRANSFORM = Transform(
    seed="worker/24",
    tag="Core",
    vllm=">=0.18,<0.20",
    upstream=Upstream.pending("0.20.0 has the field, with a bound that is never corrected"),
    remove_when="the base is 0.20.0 or later, and its bound follows the scheduler",
    edits=[
        In(BATCH, "InputBatch").do(
            add_member(FIELD, after="dcp_local_seq_lens"),
            imports="from dataclasses import dataclass, field",
        ),
        In(BATCH, "InputBatch.make_dummy").do(
            add_keyword(
                "cls(...)",
                seq_lens_cpu_upper_bound="torch.from_numpy(num_scheduled_tokens.copy())",
            ),
        ),
        In(STATES, "RequestState.__init__").do(
            insert_after(
                "self.num_computed_prefill_tokens = np.zeros(self.max_num_reqs, dtype=np.int32)",
                "self.num_computed_tokens_np = np.zeros(self.max_num_reqs, dtype=np.int32)",
            ),
        ),
        In(STATES, "RequestState.add_request").do(
            insert_after(
                "self.num_computed_prefill_tokens[req_idx] = num_computed_tokens",
                "self.num_computed_tokens_np[req_idx] = num_computed_tokens",
            ),
        ),
        In(RUNNER, "GPUModelRunner.update_requests").do(
            insert_after("reqs = scheduler_output.scheduled_cached_reqs", RECEIVE),
        ),
        In(RUNNER, "GPUModelRunner.prepare_inputs").do(
            insert_before("return InputBatch(...)", FILL),
            add_keyword(
                "InputBatch(...)", seq_lens_cpu_upper_bound="torch.from_numpy(seq_lens_np)"
            ),
        ),
    ],
    examples=[
        Example(
            STATES,
            before="""\
import numpy as np


class RequestState:
    def __init__(self, max_num_reqs):
        self.max_num_reqs = max_num_reqs
        # Number of computed tokens.
        self.num_computed_prefill_tokens = np.zeros(self.max_num_reqs, dtype=np.int32)
        self.draft_logits = None

    def add_request(self, req_idx, num_computed_tokens):
        self.num_computed_prefill_tokens[req_idx] = num_computed_tokens
""",
            after="""\
import numpy as np


class RequestState:
    def __init__(self, max_num_reqs):
        self.max_num_reqs = max_num_reqs
        # Number of computed tokens.
        self.num_computed_prefill_tokens = np.zeros(self.max_num_reqs, dtype=np.int32)
        self.num_computed_tokens_np = np.zeros(self.max_num_reqs, dtype=np.int32)
        self.draft_logits = None

    def add_request(self, req_idx, num_computed_tokens):
        self.num_computed_prefill_tokens[req_idx] = num_computed_tokens
        self.num_computed_tokens_np[req_idx] = num_computed_tokens
""",
        ),
        Example(
            BATCH,
            before="""\
from dataclasses import dataclass

import numpy as np
import torch


@dataclass
class InputBatch:
    # [num_reqs]
    dcp_local_seq_lens: torch.Tensor | None

    # [num_tokens_after_padding]
    input_ids: torch.Tensor

    @classmethod
    def make_dummy(cls, num_reqs, num_scheduled_tokens, input_ids):
        return cls(
            dcp_local_seq_lens=None,
            input_ids=input_ids,
        )
""",
            after="""\
from dataclasses import dataclass, field

import numpy as np
import torch


@dataclass
class InputBatch:
    # [num_reqs]
    dcp_local_seq_lens: torch.Tensor | None
    # [num_reqs_after_padding] on the host, int32. Exact, except that drafts of
    # steps in flight count as accepted.
    seq_lens_cpu_upper_bound: torch.Tensor | None = field(default=None, kw_only=True)

    # [num_tokens_after_padding]
    input_ids: torch.Tensor

    @classmethod
    def make_dummy(cls, num_reqs, num_scheduled_tokens, input_ids):
        return cls(
            dcp_local_seq_lens=None,
            input_ids=input_ids,
            seq_lens_cpu_upper_bound=torch.from_numpy(num_scheduled_tokens.copy()),
        )
""",
        ),
        Example(
            STATES,
            before="""\
class RequestState:
    def __init__(self, max_num_reqs):
        self.num_computed_prefill_tokens = torch.zeros(max_num_reqs)

    def add_request(self, req_idx, num_computed_tokens):
        pass
""",
            after=None,
        ),
    ],
)
