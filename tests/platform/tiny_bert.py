"""A tiny BERT and a cross-encoder, whose scores depend on the types of tokens."""

from __future__ import annotations

from pathlib import Path

import torch
from tiny_models import save_tokenizer
from tokenizers import processors
from transformers import BertConfig, BertForSequenceClassification, BertModel


def save(folder: Path, cross_encoder: bool) -> Path:
    """Write a random model, with a tokenizer that tells the two texts of a pair apart."""
    tokenizer = save_tokenizer(
        folder,
        eos="[SEP]",
        special=["[CLS]", "[PAD]"],
        sep_token="[SEP]",
        cls_token="[CLS]",
        pad_token="[PAD]",
    )
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.cls_token_id), ("[SEP]", tokenizer.sep_token_id)],
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=512,
        num_labels=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    model = (BertForSequenceClassification if cross_encoder else BertModel)(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1 if "token_type" in name else 0.2)
    model.save_pretrained(folder)
    return folder
