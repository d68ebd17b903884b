"""Reads runs as JSON; prints for each the generated tokens and what the engine counted, as JSON.

And, the same for all, what dispatch chooses for each operation on this device.
"""

import contextlib
import gc
import json
import sys
from typing import Any

from vllm import LLM, SamplingParams, TokensPrompt
from vllm.distributed import destroy_distributed_environment, destroy_model_parallel
from vllm.platforms import current_platform

from ascend_runtime import dispatch, operations

DEFAULTS = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 96,
    "disable_log_stats": False,
}
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}


def ask(llm: LLM, job: dict[str, Any]) -> dict[str, Any]:
    """Generate for all prompts."""
    each = job["sampling"]
    if isinstance(each, dict):
        each = [each] * len(job["prompts"])
    params = [SamplingParams(**{**GREEDY, **one}) for one in each]
    given = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
    outputs = llm.generate(given, params, use_tqdm=False)
    return {
        "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        "cached": [output.num_cached_tokens for output in outputs],
    }


def counts(llm: LLM) -> dict[str, float]:
    """The engine's counters of drafts."""
    found: dict[str, float] = {}
    for metric in llm.get_metrics():
        if metric.name.startswith("vllm:spec_decode_num") and hasattr(metric, "value"):
            found[metric.name.removeprefix("vllm:spec_decode_num_")] = metric.value
    return found


def main() -> None:
    """Run model by model."""
    results = []
    for job in json.load(sys.stdin):
        llm = LLM(job["folder"], **{**DEFAULTS, **job["options"]})
        result = ask(llm, job)
        if job["again"]:
            result["again"] = ask(llm, job)
        result["counts"] = counts(llm)
        result["chosen"] = {
            name: dispatch.choice(name, current_platform.device_type)
            for name in operations.OPERATIONS
        }
        results.append(result)
        del llm
        gc.collect()
        with contextlib.suppress(AssertionError):  # models want different groups
            destroy_model_parallel()
            destroy_distributed_environment()
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
