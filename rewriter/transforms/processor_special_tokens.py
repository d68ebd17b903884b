"""Keep processors from passing add_special_tokens twice.

The HunyuanVL and Nemotron-Parse processors call their tokenizer with
`add_special_tokens=False` and all keyword arguments they were given. When a
request sets the option too, Python raises "multiple values for keyword
argument". The processor's own value wins now, since the prompt holds the
special tokens already; the caller's arguments are not changed.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

TODAY = "self.tokenizer(text, add_special_tokens=False, **kwargs)"
SAFE = 'self.tokenizer(text, **{**kwargs, "add_special_tokens": False})'
HUNYUAN = "vllm/transformers_utils/processors/hunyuan_vl.py"
NEMOTRON = "vllm/model_executor/models/nemotron_parse.py"

TRANSFORM = Transform(
    seed="worker/9",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending("a fault on every platform"),
    remove_when="upstream no longer passes the option twice",
    edits=[
        In(HUNYUAN, "HunYuanVLProcessor.__call__").do(replace(TODAY, SAFE)),
        In(NEMOTRON, "NemotronParseProcessor.__call__").do(replace(TODAY, SAFE)),
    ],
    examples=[
        Example(
            HUNYUAN,
            before="""\
class HunYuanVLProcessor:
    def __call__(self, text, **kwargs):
        text_inputs = self.tokenizer(text, add_special_tokens=False, **kwargs)
        return text_inputs
""",
            after="""\
class HunYuanVLProcessor:
    def __call__(self, text, **kwargs):
        text_inputs = self.tokenizer(text, **{**kwargs, "add_special_tokens": False})
        return text_inputs
""",
        ),
        Example(
            NEMOTRON,
            before="""\
class NemotronParseProcessor:
    def __call__(self, text, **kwargs):
        return self.tokenizer(text, **kwargs)
""",
            after=None,
        ),
    ],
)
