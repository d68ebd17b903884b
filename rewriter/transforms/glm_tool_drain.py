"""Give all events of a delta at once in GLM's tool call parser.

The parser returns at most one event a call: some content, the name of a
tool, or a piece of its arguments. A delta that holds more, as with
speculative decoding or a stream interval, leaves a backlog, and what is
left of it when the generation ends is lost: calls without arguments, or no
call at all. The decorator asks the parser again, with an empty delta,
until it has nothing more to give, and merges the events into one message.
The parser itself stays as it is; `Glm47MoeModelToolParser` inherits it.

The stream of the Responses API cannot tell a message of several events, so
its parser keeps giving one event a call (and the backlog may be lost there
as before). The Messages API reads the chat stream and takes the content of
a message before its tool calls; content ends the call before it, so the
rest of that call comes in a message of its own there.

Where content and calls arrive in one delta, their order is not told: chat
messages have no place for it. Content that ends in the beginning of
`<tool_call>`, if only "<", is still withheld when the generation ends
there. A value of type string keeps the white space around it, which the
non-streaming parser strips, and content behind a call is given, which the
non-streaming parser drops.
"""

from rewriter.edits import In, add_decorator, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

PARSER = "vllm/tool_parsers/glm4_moe_tool_parser.py"
RESPONSES = "vllm/entrypoints/openai/responses/serving.py"
MESSAGES = "vllm/entrypoints/anthropic/serving.py"

TRANSFORM = Transform(
    seed="platform/10",
    tag="Bugfix",
    vllm=">=0.18,<0.20",
    upstream=Upstream.inappropriate(
        "https://github.com/vllm-project/vllm/pull/39253 wrote the parser anew, in 0.20.0"
    ),
    remove_when="the base is 0.20.0 or later",
    monkey_patch_lines=1061,
    edits=[
        In(PARSER, "Glm4MoeModelToolParser.extract_tool_calls_streaming").do(
            add_decorator("ascend_runtime.tool_stream.drained"),
        ),
        In(RESPONSES, "OpenAIServingResponses._process_simple_streaming_events").do(
            insert_after(
                "tool_parser = self.parser.tool_parser_cls(...)",
                """
                # Below, one delta is told as one event.
                ascend_runtime.tool_stream.one_event_per_call(tool_parser)
                """,
            ),
        ),
        In(MESSAGES, "AnthropicServingMessages.create_messages").do(
            replace(
                "self.message_stream_converter(generator)",
                """
                self.message_stream_converter(
                    ascend_runtime.tool_stream.begun_calls_first(generator)
                )
                """,
            ),
        ),
    ],
    examples=[
        Example(
            PARSER,
            before="""\
class Glm4MoeModelToolParser:
    def extract_tool_calls(self, model_output, request):
        return model_output

    def extract_tool_calls_streaming(self, delta_text, request):
        self._buffer += delta_text
""",
            after="""\
import ascend_runtime.tool_stream


class Glm4MoeModelToolParser:
    def extract_tool_calls(self, model_output, request):
        return model_output

    @ascend_runtime.tool_stream.drained
    def extract_tool_calls_streaming(self, delta_text, request):
        self._buffer += delta_text
""",
        ),
        Example(
            RESPONSES,
            before="""\
class OpenAIServingResponses:
    async def _process_simple_streaming_events(self, tokenizer):
        tool_parser = None
        if self.parser and self.parser.tool_parser_cls:
            tool_parser = self.parser.tool_parser_cls(tokenizer)
        yield tool_parser

    def other(self, tokenizer):
        tool_parser = self.parser.tool_parser_cls(tokenizer)
        return tool_parser
""",
            after="""\
import ascend_runtime.tool_stream


class OpenAIServingResponses:
    async def _process_simple_streaming_events(self, tokenizer):
        tool_parser = None
        if self.parser and self.parser.tool_parser_cls:
            tool_parser = self.parser.tool_parser_cls(tokenizer)
            # Below, one delta is told as one event.
            ascend_runtime.tool_stream.one_event_per_call(tool_parser)
        yield tool_parser

    def other(self, tokenizer):
        tool_parser = self.parser.tool_parser_cls(tokenizer)
        return tool_parser
""",
        ),
        Example(
            MESSAGES,
            before="""\
class AnthropicServingMessages:
    async def create_messages(self, generator):
        return self.message_stream_converter(generator)
""",
            after="""\
import ascend_runtime.tool_stream


class AnthropicServingMessages:
    async def create_messages(self, generator):
        return self.message_stream_converter(
            ascend_runtime.tool_stream.begun_calls_first(generator)
        )
""",
        ),
    ],
)
