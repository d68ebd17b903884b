"""Reads folders of a cross-encoder and a BERT, pairs and texts; prints scores and embeddings."""

import gc
import json
import sys

from vllm import LLM
from vllm.distributed import destroy_distributed_environment, destroy_model_parallel

OPTIONS = {"dtype": "float32", "enforce_eager": True, "max_model_len": 256}


def main() -> None:
    """Score, then embed."""
    given = json.load(sys.stdin)
    llm = LLM(given["cross_encoder"], **OPTIONS)
    scores = [llm.score(*pair, use_tqdm=False)[0].outputs.score for pair in given["pairs"]]
    del llm
    gc.collect()
    destroy_model_parallel()
    destroy_distributed_environment()
    llm = LLM(given["bert"], runner="pooling", **OPTIONS)
    embeddings = [output.outputs.embedding for output in llm.embed(given["texts"], use_tqdm=False)]
    print("\n" + json.dumps({"scores": scores, "embeddings": embeddings}))


if __name__ == "__main__":
    main()
