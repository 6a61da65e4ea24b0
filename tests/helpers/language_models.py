"""Language models of `transformers` with random weights, small and made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def tokenizer() -> Any:
    """Byte pairs in which a space and a letter are one token, as is a new line."""
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator(["".join(f" {letter}" for letter in LETTERS), " over over"] * 3, trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="Ġover")


def sentencepiece() -> Any:
    """As Llama 2's: a text that stands alone gets a space at its start, and loses it when it is decoded."""
    marked = [f"▁{letter}" for letter in LETTERS]
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS, *marked]
    bpe = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={token: i for i, token in enumerate(vocab)},
            merges=[("▁", letter) for letter in LETTERS],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    normal, decode = tokenizers.normalizers, tokenizers.decoders
    bpe.normalizer = normal.Sequence([normal.Prepend("▁"), normal.Replace(" ", "▁")])
    bpe.decoder = decode.Sequence(
        [decode.Replace("▁", " "), decode.ByteFallback(), decode.Fuse(), decode.Strip(" ", 1, 0)]
    )
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bpe, bos_token="<s>", unk_token="<unk>")


def saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return f"hf:{folder}"


SIZES = {
    "GPT2": {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64},
    "Llama": {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
    "Mamba": {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4},
}


def random_model(family: str, folder: Path) -> str:
    kind = {"GPT2": "GPT2LMHeadModel"}.get(family, f"{family}ForCausalLM")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(vocab_size=290, **SIZES[family])
    return saved(getattr(transformers, kind)(config), folder)
