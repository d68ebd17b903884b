"""Count the reasoning tokens of MiniMax-M2.

MiniMax-M2 writes no start tag: all that comes before the first `</think>`
is reasoning. Both of its parsers count as if there were one, or not at all,
and so always say 0, in the usage of the Responses API for one. They count
the tokens before the end tag now, and all of them as long as it has not
come.

A `<think>` that the model writes nevertheless counts as a token of
reasoning. The parser does not see the prompt: where that has closed the
reasoning already, the Responses API still takes the whole output for it.
"""

from rewriter.edits import In, add_member
from rewriter.transform import Example, Transform, Upstream

FILE = "vllm/reasoning/minimax_m2_reasoning_parser.py"

TRANSFORM = Transform(
    seed="platform/9",
    tag="Bugfix",
    vllm=">=0.18",
    upstream=Upstream.pending(
        "https://github.com/vllm-project/vllm/pull/37955 was closed unmerged"
    ),
    remove_when="upstream counts MiniMax-M2's reasoning tokens without a start tag",
    monkey_patch_lines=367,
    edits=[
        In(FILE, "MiniMaxM2ReasoningParser").do(
            add_member(
                '''
                def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
                    """Count the tokens before the first end token; all, if there is none."""
                    end = (n for n, token in enumerate(token_ids) if token == self.end_token_id)
                    return next(end, len(token_ids))
                ''',
                after="end_token",
            ),
        ),
        In(FILE, "MiniMaxM2AppendThinkReasoningParser").do(
            add_member(
                '''
                def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
                    """Count the tokens before the first end token; all, if there is none."""
                    if self.end_token_id is None:
                        return 0
                    end = (n for n, token in enumerate(token_ids) if token == self.end_token_id)
                    return next(end, len(token_ids))
                ''',
                after="extract_content_ids",
            ),
        ),
    ],
    examples=[
        Example(
            FILE,
            before='''\
from collections.abc import Sequence


class MiniMaxM2ReasoningParser(BaseThinkingReasoningParser):
    @property
    def end_token(self) -> str:
        """The token that ends reasoning content."""
        return "</think>"

    def extract_reasoning_streaming(self, delta_text: str):
        return DeltaMessage(reasoning=delta_text)


class MiniMaxM2AppendThinkReasoningParser(ReasoningParser):
    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids
''',
            after='''\
from collections.abc import Sequence


class MiniMaxM2ReasoningParser(BaseThinkingReasoningParser):
    @property
    def end_token(self) -> str:
        """The token that ends reasoning content."""
        return "</think>"

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the tokens before the first end token; all, if there is none."""
        end = (n for n, token in enumerate(token_ids) if token == self.end_token_id)
        return next(end, len(token_ids))

    def extract_reasoning_streaming(self, delta_text: str):
        return DeltaMessage(reasoning=delta_text)


class MiniMaxM2AppendThinkReasoningParser(ReasoningParser):
    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Count the tokens before the first end token; all, if there is none."""
        if self.end_token_id is None:
            return 0
        end = (n for n, token in enumerate(token_ids) if token == self.end_token_id)
        return next(end, len(token_ids))
''',
        ),
        Example(
            FILE,
            before="""\
class MiniMaxM2ReasoningParser(BaseThinkingReasoningParser):
    @property
    def end_token(self) -> str:
        return "</think>"

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        return sum(1 for token in token_ids if token != self.end_token_id)


class MiniMaxM2AppendThinkReasoningParser(ReasoningParser):
    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        return input_ids
""",
            after=None,
        ),
    ],
)
