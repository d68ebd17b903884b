"""Pack BERT token types by multiplication instead of shifts.

Tensor shifts have no operator that graph capture on Ascend can use
(torch_npu 2.9). On integers `x << n` is `x * (1 << n)` and `x >> n` is
floor division by `1 << n`, negative numbers included, so the packed values
stay bit for bit what they were. The mask is still applied before the
division: a padding id of -1 decodes to type 1, as it always has.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/models/bert.py"

TRANSFORM = Transform(
    seed="worker/3",
    tag="Hardware",
    vllm=">=0.18",
    upstream=Upstream.pending("device neutral; torch_npu 2.10 no longer needs it"),
    remove_when="torch_npu 2.10 or later is required",
    edits=[
        In(FILE, "_encode_token_type_ids").do(
            replace(
                "token_type_ids << TOKEN_TYPE_SHIFT", "token_type_ids * (1 << TOKEN_TYPE_SHIFT)"
            ),
        ),
        In(FILE, "_decode_token_type_ids").do(
            replace(
                "torch.ones_like(input_ids, dtype=torch.int32, device=input_ids.device)"
                " << TOKEN_TYPE_SHIFT",
                "torch.full_like(input_ids, 1 << TOKEN_TYPE_SHIFT, dtype=torch.int32)",
            ),
            replace(
                "input_ids.bitwise_and(ids_mask) >> TOKEN_TYPE_SHIFT",
                "input_ids.bitwise_and(ids_mask) // (1 << TOKEN_TYPE_SHIFT)",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
def _encode_token_type_ids(input_ids, token_type_ids):
    input_ids[: token_type_ids.shape[0]].bitwise_or_(token_type_ids << TOKEN_TYPE_SHIFT)


def _decode_token_type_ids(input_ids):
    ids_mask = (
        torch.ones_like(input_ids, dtype=torch.int32, device=input_ids.device)
        << TOKEN_TYPE_SHIFT
    )
    token_type_ids = input_ids.bitwise_and(ids_mask) >> TOKEN_TYPE_SHIFT
    return token_type_ids


assert vocab_size < (1 << TOKEN_TYPE_SHIFT)
""",
            after="""\
def _encode_token_type_ids(input_ids, token_type_ids):
    input_ids[: token_type_ids.shape[0]].bitwise_or_(
        token_type_ids * (1 << TOKEN_TYPE_SHIFT)
    )


def _decode_token_type_ids(input_ids):
    ids_mask = torch.full_like(input_ids, 1 << TOKEN_TYPE_SHIFT, dtype=torch.int32)
    token_type_ids = input_ids.bitwise_and(ids_mask) // (1 << TOKEN_TYPE_SHIFT)
    return token_type_ids


assert vocab_size < (1 << TOKEN_TYPE_SHIFT)
""",
        ),
    ],
)
