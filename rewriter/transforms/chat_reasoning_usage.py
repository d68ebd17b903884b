"""Report reasoning tokens in the usage of chat completions.

The usage of a chat completion gets `completion_tokens_details` with
`reasoning_tokens`, in the form of vLLM 0.28.0: in the response, in the last
chunk of a stream and in every chunk if usage is wanted continuously. It is
there only where a reasoning parser is in use whose class can count. Tokens
are looked at once, as they arrive, by `ascend_runtime.usage`, which knows
vLLM's own ways of counting; a parser with one of its own is asked about the
whole output, which with continuous usage means in every chunk.

`UsageInfo` is the class of all endpoints. In responses that are not
streamed the others show `"completion_tokens_details": null` beside their
`"prompt_tokens_details": null`.

MiniMax-M2 says 0 where the prompt has closed the reasoning. A parser that
counts between start and end tags says 0 where the prompt holds the start
tag, as DeepSeek-R1's does: the count is the parser's own.
"""

from rewriter.edit import Edit
from rewriter.edits import In, add_member, insert_after, insert_before, replace
from rewriter.transform import Example, Transform, Upstream

PROTOCOL = "vllm/entrypoints/openai/engine/protocol.py"
SERVING = "vllm/entrypoints/openai/chat_completion/serving.py"


def detailed(target: str, completion: str, total: str, details: str, count: int = 1) -> Edit:
    """Give the usage that is assigned to `target` the details of its completion tokens."""
    usage = f"""
        {target} = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens={completion},
            total_tokens={total},
        )
        """
    end = f"total_tokens={total},"
    return replace(usage, usage.replace(end, f"{end}\n            **{details},"), count=count)


TOTAL = "num_prompt_tokens + completion_tokens"

TRANSFORM = Transform(
    seed="platform/9",
    tag="Feature",
    vllm=">=0.18,<0.28",
    upstream=Upstream.inappropriate(
        "https://github.com/vllm-project/vllm/pull/45802 reports them in 0.28.0, in its own way"
    ),
    remove_when="the base is 0.28.0 or later",
    monkey_patch_lines=367,
    edits=[
        In(PROTOCOL).do(
            insert_before(
                """
                class UsageInfo(OpenAIBaseModel):
                    ...
                """,
                """
                class CompletionTokenUsageInfo(OpenAIBaseModel):
                    reasoning_tokens: int = 0
                """,
            ),
        ),
        In(PROTOCOL, "UsageInfo").do(
            add_member(
                "completion_tokens_details: CompletionTokenUsageInfo | None = None",
                after="prompt_tokens_details",
            ),
        ),
        In(SERVING, "OpenAIServingChat.chat_completion_stream_generator").do(
            insert_after(
                "previous_num_tokens = [0] * num_choices",
                """
                reasoning_usage = ascend_runtime.usage.ReasoningUsage(
                    reasoning_parser, num_choices
                )
                """,
            ),
            insert_after(
                "previous_num_tokens[i] += len(output.token_ids)",
                "reasoning_usage.feed(i, output.token_ids, res.prompt_token_ids)",
            ),
            detailed(
                "chunk.usage", "0", "num_prompt_tokens", "reasoning_usage.details(i)", count=2
            ),
            detailed("chunk.usage", "completion_tokens", TOTAL, "reasoning_usage.details(i)"),
            detailed("final_usage", "completion_tokens", TOTAL, "reasoning_usage.details()"),
            detailed(
                "request_metadata.final_usage_info",
                "num_completion_tokens",
                "num_prompt_tokens + num_completion_tokens",
                "reasoning_usage.details()",
            ),
        ),
        In(SERVING, "OpenAIServingChat.chat_completion_full_generator").do(
            detailed(
                "usage",
                "num_generated_tokens",
                "num_prompt_tokens + num_generated_tokens",
                """ascend_runtime.usage.reasoning_details(
                    reasoning_parser, final_res.prompt_token_ids, final_res.outputs
                )""",
            ),
        ),
    ],
    examples=[
        Example(
            PROTOCOL,
            before="""\
class PromptTokenUsageInfo(OpenAIBaseModel):
    cached_tokens: int | None = None


class UsageInfo(OpenAIBaseModel):
    prompt_tokens: int = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
""",
            after="""\
class PromptTokenUsageInfo(OpenAIBaseModel):
    cached_tokens: int | None = None


class CompletionTokenUsageInfo(OpenAIBaseModel):
    reasoning_tokens: int = 0


class UsageInfo(OpenAIBaseModel):
    prompt_tokens: int = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: CompletionTokenUsageInfo | None = None
""",
        ),
        Example(
            SERVING,
            before="""\
from vllm.entrypoints.openai.engine.protocol import UsageInfo


class OpenAIServingChat:
    async def chat_completion_stream_generator(self, request, reasoning_parser):
        previous_num_tokens = [0] * num_choices
        async for res in result_generator:
            if first_iteration:
                for i in range(num_choices):
                    chunk.usage = UsageInfo(
                        prompt_tokens=num_prompt_tokens,
                        completion_tokens=0,
                        total_tokens=num_prompt_tokens,
                    )
                for i in range(num_choices):
                    chunk.usage = UsageInfo(
                        prompt_tokens=num_prompt_tokens,
                        completion_tokens=0,
                        total_tokens=num_prompt_tokens,
                    )
            for output in res.outputs:
                previous_num_tokens[i] += len(output.token_ids)
                chunk.usage = UsageInfo(
                    prompt_tokens=num_prompt_tokens,
                    completion_tokens=completion_tokens,
                    total_tokens=num_prompt_tokens + completion_tokens,
                )
        final_usage = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=num_prompt_tokens + completion_tokens,
        )
        request_metadata.final_usage_info = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_completion_tokens,
            total_tokens=num_prompt_tokens + num_completion_tokens,
        )

    async def chat_completion_full_generator(self, final_res, reasoning_parser):
        usage = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_generated_tokens,
            total_tokens=num_prompt_tokens + num_generated_tokens,
        )
""",
            after="""\
import ascend_runtime.usage

from vllm.entrypoints.openai.engine.protocol import UsageInfo


class OpenAIServingChat:
    async def chat_completion_stream_generator(self, request, reasoning_parser):
        previous_num_tokens = [0] * num_choices
        reasoning_usage = ascend_runtime.usage.ReasoningUsage(
            reasoning_parser, num_choices
        )
        async for res in result_generator:
            if first_iteration:
                for i in range(num_choices):
                    chunk.usage = UsageInfo(
                        prompt_tokens=num_prompt_tokens,
                        completion_tokens=0,
                        total_tokens=num_prompt_tokens,
                        **reasoning_usage.details(i),
                    )
                for i in range(num_choices):
                    chunk.usage = UsageInfo(
                        prompt_tokens=num_prompt_tokens,
                        completion_tokens=0,
                        total_tokens=num_prompt_tokens,
                        **reasoning_usage.details(i),
                    )
            for output in res.outputs:
                previous_num_tokens[i] += len(output.token_ids)
                reasoning_usage.feed(i, output.token_ids, res.prompt_token_ids)
                chunk.usage = UsageInfo(
                    prompt_tokens=num_prompt_tokens,
                    completion_tokens=completion_tokens,
                    total_tokens=num_prompt_tokens + completion_tokens,
                    **reasoning_usage.details(i),
                )
        final_usage = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=num_prompt_tokens + completion_tokens,
            **reasoning_usage.details(),
        )
        request_metadata.final_usage_info = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_completion_tokens,
            total_tokens=num_prompt_tokens + num_completion_tokens,
            **reasoning_usage.details(),
        )

    async def chat_completion_full_generator(self, final_res, reasoning_parser):
        usage = UsageInfo(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=num_generated_tokens,
            total_tokens=num_prompt_tokens + num_generated_tokens,
            **ascend_runtime.usage.reasoning_details(
                reasoning_parser, final_res.prompt_token_ids, final_res.outputs
            ),
        )
""",
        ),
        Example(
            PROTOCOL,
            before="""\
class UsageInfo(OpenAIBaseModel):
    prompt_tokens: int = 0
    prompt_tokens_details: PromptTokenUsageInfo | None = None
    completion_tokens_details: dict[str, int] | None = None
""",
            after=None,
        ),
    ],
)
