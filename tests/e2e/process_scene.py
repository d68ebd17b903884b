"""An engine whose workers may start processes of their own.

Says in a line of JSON what the workers did; then it ends, or with "wait" waits to be killed.
"""

import json
import multiprocessing
import os
import sys
import time

# Before vLLM is imported: "older" is what `weakref.finalize` may be than multiprocessing.
from vllm import LLM, SamplingParams, TokensPrompt


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
        manager = self.manager._process.pid
        return result | {"manager": manager, "plan": self.plan["experts"]}


def main(folder: str, options: str, then: str) -> None:
    """Run an engine with two workers."""
    llm = LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        tensor_parallel_size=2,
        distributed_executor_backend="mp",
        worker_extension_cls="process_scene.Planner",
        **json.loads(options),
    )
    told = llm.collective_rpc("start_manager")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompt = TokensPrompt(prompt_token_ids=[5, 6, 7, 8])
    (output,) = llm.generate([prompt], params, use_tqdm=False)
    print(json.dumps({"told": told, "tokens": list(output.outputs[0].token_ids)}), flush=True)
    if then == "wait":
        time.sleep(600)
    if then == "finish":
        sys.stdin.read()  # until the test has seen all processes


if __name__ == "__main__":
    main(*sys.argv[1:])
