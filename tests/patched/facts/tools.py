"""The transforms of tool calls in streams."""

from __future__ import annotations

from facts import fact


@fact
def glm_tool_drain() -> bool:
    from serving_kit import Tokenizer
    from test_glm_parser import Glm47MoeModelToolParser, feed

    message = feed(Glm47MoeModelToolParser(Tokenizer()), "<tool_call>f</tool_call>")
    return message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


@fact
def glm_argument_separator() -> bool:
    from test_glm_parser import parse

    one, two = (f"<arg_key>{key}</arg_key><arg_value>1</arg_value>" for key in ("n", "other"))
    return parse([f"<tool_call>f\n{one}{two}</tool_call>"])[0].arguments == ['{"n": 1, "other": 1}']


@fact
def tool_finish_backfill() -> bool:
    from test_tool_finish import begins, goes_on, play, read, record

    chunks = play((begins(0, "f", '{"a":'), record({})), (goes_on(0, "1"), record({"a": 1})))
    return read(chunks).arguments == ['{"a":1}']


@fact
def tool_parser_per_choice() -> bool:
    import test_tool_finish

    test_tool_finish.test_every_choice_has_a_parser_of_its_own()
    return True
