"""An engine whose workers may start processes of their own.

Says in a line of JSON what the workers did, waits for the end of its input, and ends; or with
"again" asks once more before, and says what error that gave.
"""

import json
import multiprocessing
import os
import sys
from typing import Any


class Planner:
    """What is added to the workers: a process that plans the balancing of experts."""

    def start_manager(self) -> dict[str, object]:
        """Start a manager, use it, keep it; tell the process ids, or why there is none."""
        result: dict[str, object] = {
            "worker": os.getpid(),
            "daemon": multiprocessing.current_process().daemon,
        }
        try:
            self.manager = multiprocessing.Manager()
        except AssertionError as error:
            return result | {"error": str(error)}
        self.plan = self.manager.dict(experts=[1, 2])
        return result | {"manager": self.manager._process.pid, "plan": self.plan["experts"]}


def main(job: dict[str, Any]) -> None:
    """Run an engine with two workers."""
    # Not at the top: a manager that is spawned imports this module.
    from vllm import LLM, SamplingParams, TokensPrompt

    llm = LLM(
        job["folder"],
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        worker_extension_cls="process_scene.Planner",
    )

    def ask() -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=job["count"], ignore_eos=True)
        given = [TokensPrompt(prompt_token_ids=prompt) for prompt in job["prompts"]]
        outputs = llm.generate(given, params, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    told = llm.collective_rpc("start_manager")
    print(json.dumps({"told": told, "tokens": ask()}), flush=True)
    sys.stdin.read()  # until the test has seen all processes
    if job["again"]:
        try:
            ask()
        except Exception as error:
            print(json.dumps(type(error).__name__), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.stdin.readline()))
