"""Give each choice of a chat stream a tool parser of its own.

Streaming tool parsers keep state, but the choices of one request (`n`)
share one parser: its buffer gets the text of all of them in turn, and the
calls come out mixed or not at all.
"""

from rewriter.edits import In, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/entrypoints/openai/chat_completion/serving.py"

TRANSFORM = Transform(
    seed="platform/10",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.backport("https://github.com/vllm-project/vllm/pull/38158, in 0.20.0"),
    remove_when="the base is 0.20.0 or later",
    monkey_patch_lines=1061,
    edits=[
        In(FILE, "OpenAIServingChat.chat_completion_stream_generator").do(
            replace(
                "[self.tool_parser(tokenizer)] * num_choices",
                "[self.tool_parser(tokenizer) for _ in range(num_choices)]",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class OpenAIServingChat:
    def chat_completion_stream_generator(self, tokenizer, num_choices):
        tool_parsers: list[ToolParser | None] = [
            self.tool_parser(tokenizer)
        ] * num_choices
        return tool_parsers
""",
            after="""\
class OpenAIServingChat:
    def chat_completion_stream_generator(self, tokenizer, num_choices):
        tool_parsers: list[ToolParser | None] = [
            self.tool_parser(tokenizer) for _ in range(num_choices)
        ]
        return tool_parsers
""",
        ),
        Example(
            FILE,
            before="""\
class OpenAIServingChat:
    def chat_completion_stream_generator(self, num_choices):
        return [None] * num_choices
""",
            after=None,
        ),
    ],
)
