"""Find parameters of 8-bit KV caches by the names of Ascend's quantizer.

Checkpoints with an 8-bit cache ("C8") hold scales and offsets like
`self_attn.fa_k.scale`, and rotations of the indexer. The parameters belong
to the attention layer, which MLA models wrap twice, so the loaders of models
do not find them. The edit is in the one function that all loaders ask about
names of scales, and all of them import it by name: the main model, its
multi-token predictor, and every other one. What is nowhere in the model is
skipped with a warning, as other scales are. Names without these suffixes,
and answers given before, stay as they are.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/model_executor/model_loader/weight_utils.py"

TRANSFORM = Transform(
    seed="worker/23",
    tag="Model",
    vllm=">=0.18",
    upstream=Upstream.inappropriate("the names are those of Ascend's quantizer"),
    remove_when="Ascend's quantization method loads its scales by itself",
    edits=[
        In(FILE, "maybe_remap_kv_scale_name").do(
            replace(
                "return name",
                "return ascend_runtime.kv_scales.remap_modelslim_name(name, params_dict)",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
def maybe_remap_kv_scale_name(name: str, params_dict: dict) -> str | None:
    if name.endswith(".kv_scale"):
        remapped_name = name.replace(".kv_scale", ".attn.k_scale")
        if remapped_name not in params_dict:
            return None
        return remapped_name

    # If there were no matches, return the untouched param name
    return name
""",
            after="""\
import ascend_runtime.kv_scales


def maybe_remap_kv_scale_name(name: str, params_dict: dict) -> str | None:
    if name.endswith(".kv_scale"):
        remapped_name = name.replace(".kv_scale", ".attn.k_scale")
        if remapped_name not in params_dict:
            return None
        return remapped_name

    # If there were no matches, return the untouched param name
    return ascend_runtime.kv_scales.remap_modelslim_name(name, params_dict)
""",
        ),
        Example(
            FILE,
            before="""\
def maybe_remap_kv_scale_name(name: str, params_dict: dict) -> str | None:
    if name in params_dict:
        return name
    return name
""",
            after=None,
        ),
    ],
)
