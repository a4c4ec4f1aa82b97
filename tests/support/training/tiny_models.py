"""Random models of a few thousand weights, saved as real ones are: no network, a tenth of a second.

The tokenizer is made here too: a byte-level BPE of a few words.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    BertModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

CONTEXT = 128
WORDS = ["red shoes blue hat tag"]
# The first special token begins a prompt, the second one ends an answer.
SPECIAL = ["<s>", "</s>"]
TEMPLATE = "{% for m in messages %}<s>user {{ m['content'] | trim }}</s>{% endfor %}<s>answer"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes and a few words."""
    tokenizer: Any = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(WORDS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = TEMPLATE
    return fast


def save_llama(folder: Path, vocab_size: int = 320, seed: int = 0) -> Path:
    """Save a language model of 0.1 M weights. Returns its folder."""
    logging.disable_progress_bar()
    build_tokenizer().save_pretrained(folder)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_bert(folder: Path) -> Path:
    """Save an embedding model whose vectors have 8 numbers. Returns its folder."""
    logging.disable_progress_bar()
    build_tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=320,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
    )
    BertModel(config).save_pretrained(folder)
    return folder
