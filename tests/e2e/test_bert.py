"""BERT: scores of pairs, by the types of their tokens, and embeddings are those of transformers."""

from __future__ import annotations

import pytest
import tiny_bert
import torch
import torch.nn.functional as F
from e2e_kit import Ground
from transformers import AutoTokenizer, BertForSequenceClassification, BertModel

PAIRS = [
    ("hello world", "the quick brown fox"),
    ("a", "b" * 40),
    ("function name parameter", "how are you today"),
]
TEXTS = [text for pair in PAIRS for text in pair]


@pytest.mark.parametrize("device", ["npu", pytest.param("cpu", marks=pytest.mark.slow)])
def test_scores_and_embeddings(e2e: Ground, device: str) -> None:
    folders = {name: e2e.work / name for name in ("cross_encoder", "bert")}
    for name, folder in folders.items():
        if not folder.exists():
            tiny_bert.save(folder, name == "cross_encoder")
    asked = {name: str(folder) for name, folder in folders.items()}
    got = e2e.scene("pooling_scene.py", {**asked, "pairs": PAIRS, "texts": TEXTS}, device)

    tokenizer = AutoTokenizer.from_pretrained(folders["cross_encoder"])
    scorer = BertForSequenceClassification.from_pretrained(folders["cross_encoder"]).eval()
    embedder = BertModel.from_pretrained(folders["bert"]).eval()
    with torch.no_grad():
        pairs = [tokenizer(*pair, return_tensors="pt") for pair in PAIRS]
        scores = [scorer(**pair).logits.sigmoid().item() for pair in pairs]
        untyped = [scorer(pair["input_ids"]).logits.sigmoid().item() for pair in pairs]
        states = [
            embedder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0]
            for text in TEXTS
        ]
    assert got["scores"] == pytest.approx(scores, abs=1e-5)
    assert all(abs(a - b) > 1e-3 for a, b in zip(scores, untyped, strict=True))
    wanted = torch.stack([F.normalize(state, dim=0) for state in states])
    torch.testing.assert_close(torch.tensor(got["embeddings"]), wanted, rtol=0, atol=1e-5)
