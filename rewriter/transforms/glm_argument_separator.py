"""Separate streamed GLM arguments as json.dumps does.

The streaming parser puts `", "` before an argument of type string, but
`","` before one of another type, so the streamed text of a call is neither
compact JSON nor what the non-streaming parser gives. With `", "` before
both it is byte for byte `json.dumps(arguments, ensure_ascii=False)`.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/tool_parsers/glm4_moe_tool_parser.py"

TRANSFORM = Transform(
    seed="platform/10",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.pending(),
    remove_when="the base is 0.20.0 or later, where the parser is another",
    monkey_patch_lines=1061,
    edits=[
        In(FILE, "Glm4MoeModelToolParser._append_arg_fragment").do(
            replace(
                '"," + key_json + ": " + val_json',
                '", " + key_json + ": " + val_json',
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class Glm4MoeModelToolParser:
    def _append_arg_fragment(self, started, key_json, val_json):
        if not started:
            return "{" + key_json + ": " + val_json
        return "," + key_json + ": " + val_json

    def other(self, key_json, val_json):
        return "," + key_json + ": " + val_json
""",
            after="""\
class Glm4MoeModelToolParser:
    def _append_arg_fragment(self, started, key_json, val_json):
        if not started:
            return "{" + key_json + ": " + val_json
        return ", " + key_json + ": " + val_json

    def other(self, key_json, val_json):
        return "," + key_json + ": " + val_json
""",
        ),
    ],
)
