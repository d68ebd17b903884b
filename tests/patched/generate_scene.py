"""Reads a folder and families of models; prints what vLLM and transformers generate, as JSON.

Each family is a tiny random model, in float32, so that greedy tokens must be the same. Prompts are
longer than a block, a sliding window and a chunk of prefill.
"""

import json
import sys
from pathlib import Path

import tiny_models
import torch
from transformers import AutoModelForCausalLM
from vllm import LLM, SamplingParams
from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

PROMPTS = ["hello world", "the quick brown fox", "Zwölf Boxkämpfer, 17 + 4!" * 2, "a", "vLLM"]
TOKENS = 24


def by_vllm(folder: Path) -> tuple[list[list[int]], list[list[int]]]:
    """Return the prompts' and the generated tokens."""
    llm = LLM(
        str(folder),
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        block_size=16,
    )
    greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    outputs = llm.generate(PROMPTS, greedy, use_tqdm=False)
    destroy_model_parallel()  # dense models and mixtures of experts want different groups
    destroy_distributed_environment()
    prompts = [list(output.prompt_token_ids) for output in outputs]
    return prompts, [list(output.outputs[0].token_ids) for output in outputs]


def by_transformers(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return the generated tokens."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    results = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        generated = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        results.append(generated[0, len(prompt) :].tolist())
    return results


def main() -> None:
    """Compare family by family."""
    results = {}
    for family in sys.argv[2:]:
        folder = tiny_models.save_model(Path(sys.argv[1], family), family)
        prompts, ours = by_vllm(folder)
        results[family] = {
            "longest": max(map(len, prompts)),
            "vllm": ours,
            "transformers": by_transformers(folder, prompts),
        }
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
