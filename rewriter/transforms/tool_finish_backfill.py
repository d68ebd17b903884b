"""Append what a tool call still lacks to the last message of a stream.

Where the last delta of a stream carries arguments, the server works out
what is missing and sends that in the delta's place. It compares with what
the parser has gathered, less the length of the delta's first call,
whichever call that is, and removes the result from the expected text
wherever it stands, or nowhere. So the end of a call or a whole second call
is lost, or the arguments come twice, and content in the delta is dropped.

Now what went out is recorded, after the filter for parallel calls, and the
rest is appended to the delta, which otherwise stays as the parser made it,
but for arguments that would spoil the call: some parsers (Hermes, LongCat)
take the brace that ends the call for a part of them.
`ascend_runtime.tool_stream.remaining_args` aligns the two texts even if
they are formatted differently; where it cannot, nothing is added. This
runs for every tool parser. A parser that has no call on record when one
is in the delta no longer ends the stream with an IndexError.

As before, a stream that ends in the name of a tool gets the arguments
`{}`. `_create_remaining_args_delta` has no caller any more; vLLM's tests
of it still pass.
"""

from rewriter.edits import In, insert_after, replace
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/entrypoints/openai/chat_completion/serving.py"

TRANSFORM = Transform(
    seed="platform/10",
    tag="Bugfix",
    vllm=">=0.18,<0.23",
    upstream=Upstream.inappropriate("upstream rewrote the end of the stream, in 0.23.0"),
    remove_when="the base is 0.23.0 or later",
    monkey_patch_lines=1061,
    edits=[
        In(FILE, "OpenAIServingChat.chat_completion_stream_generator").do(
            insert_after(
                "function_name_returned = [False] * num_choices",
                """
                # The arguments sent so far, by choice and index of the call.
                sent_tool_args: list[dict[int, str]] = [{} for _ in range(num_choices)]
                """,
            ),
            replace(
                """
                if (
                    self._should_check_for_unstreamed_tool_arg_tokens(delta_message, output)
                    and tool_parser
                ):
                    ...
                """,
                """
                if (
                    self._should_check_for_unstreamed_tool_arg_tokens(
                        delta_message, output
                    )
                    and tool_parser
                    and auto_tools_called
                ):
                    # The parser's record of the call, as an object or
                    # (e.g. Qwen3Coder) as a JSON string.
                    args = tool_parser.prev_tool_call_arr[index].get(
                        "arguments", {}
                    )
                    sent = sent_tool_args[i].get(index, "")
                    ascend_runtime.tool_stream.append_unsent_args(
                        delta_message, index, args, sent
                    )
                """,
            ),
            insert_after(
                "choice_data = maybe_filter_parallel_tool_calls(choice_data, request)",
                "ascend_runtime.tool_stream.record_sent_args(choice_data.delta, sent_tool_args[i])",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before="""\
class OpenAIServingChat:
    def chat_completion_stream_generator(self, num_choices, outputs):
        function_name_returned = [False] * num_choices
        for i, (tool_parser, delta_message, output) in enumerate(outputs):
            auto_tools_called = len(tool_parser.prev_tool_call_arr) > 0
            index = len(tool_parser.prev_tool_call_arr) - 1
            if (
                self._should_check_for_unstreamed_tool_arg_tokens(delta_message, output)
                and tool_parser
            ):
                # get what is missing
                remaining_call = expected_call.replace(actual_call, "", 1)
                delta_message = self._create_remaining_args_delta(
                    delta_message, remaining_call, index
                )
            choice_data = maybe_filter_parallel_tool_calls(choice_data, request)
            yield choice_data

    def chat_completion_full_generator(self, choice_data, request):
        choice_data = maybe_filter_parallel_tool_calls(choice_data, request)
        return choice_data
""",
            after="""\
import ascend_runtime.tool_stream


class OpenAIServingChat:
    def chat_completion_stream_generator(self, num_choices, outputs):
        function_name_returned = [False] * num_choices
        # The arguments sent so far, by choice and index of the call.
        sent_tool_args: list[dict[int, str]] = [{} for _ in range(num_choices)]
        for i, (tool_parser, delta_message, output) in enumerate(outputs):
            auto_tools_called = len(tool_parser.prev_tool_call_arr) > 0
            index = len(tool_parser.prev_tool_call_arr) - 1
            if (
                self._should_check_for_unstreamed_tool_arg_tokens(delta_message, output)
                and tool_parser
                and auto_tools_called
            ):
                # The parser's record of the call, as an object or
                # (e.g. Qwen3Coder) as a JSON string.
                args = tool_parser.prev_tool_call_arr[index].get("arguments", {})
                sent = sent_tool_args[i].get(index, "")
                ascend_runtime.tool_stream.append_unsent_args(
                    delta_message, index, args, sent
                )
            choice_data = maybe_filter_parallel_tool_calls(choice_data, request)
            ascend_runtime.tool_stream.record_sent_args(
                choice_data.delta, sent_tool_args[i]
            )
            yield choice_data

    def chat_completion_full_generator(self, choice_data, request):
        choice_data = maybe_filter_parallel_tool_calls(choice_data, request)
        return choice_data
""",
        ),
        Example(
            FILE,
            before="""\
class OpenAIServingChat:
    def chat_completion_stream_generator(self, num_choices):
        function_name_returned = [False] * num_choices
""",
            after=None,
        ),
    ],
)
