"""Tiny language models in the Hugging Face format, with random weights, and their tokenizers."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
)

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIAL, "the", "computer", "monitor", "car", "vehi", "##cle"]
PIECES += ["a", "is", "on", "i", "read", "s", "'", ",", "."]
BEGIN = "<|endoftext|>"


def wordpiece(lowercase: bool) -> PreTrainedTokenizerFast:
    """The tokenizer of BERT with a vocabulary written here; *vehicle* has two pieces."""
    tokenizer = Tokenizer(
        models.WordPiece({piece: at for at, piece in enumerate(PIECES)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def byte_pairs(lines: list[str], begin: bool = True) -> PreTrainedTokenizerFast:
    """The tokenizer of GPT-2 with merges of these lines, and its symbol for the beginning."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=400, special_tokens=[BEGIN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(lines, trainer)
    special = {"bos_token": BEGIN} if begin else {}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)


def bert_config(**changed: Any) -> BertConfig:
    """A BERT of two layers for lines of at most 12 tokens."""
    sizes = {
        "vocab_size": len(PIECES),
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "max_position_embeddings": 12,
    }
    return BertConfig(**sizes | changed)


def gpt2_config(tokenizer: PreTrainedTokenizerFast) -> GPT2Config:
    """A GPT-2 of two layers for lines of at most 40 tokens."""
    begin = tokenizer.bos_token_id
    return GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=8,
        n_layer=2,
        n_head=2,
        n_positions=40,
        bos_token_id=begin,
        eos_token_id=begin,
    )


def save(folder: Path, model: Any, tokenizer: PreTrainedTokenizerFast | None = None) -> Path:
    """Save a model with far-apart random weights, and its tokenizer."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def make_bert(folder: Path, lowercase: bool = True) -> Path:
    """A masked language model."""
    return save(folder, BertForMaskedLM(bert_config()), wordpiece(lowercase))


def make_gpt2(folder: Path, lines: list[str], begin: bool = True) -> Path:
    """A causal language model."""
    tokenizer = byte_pairs(lines, begin)
    return save(folder, GPT2LMHeadModel(gpt2_config(tokenizer)), tokenizer)
