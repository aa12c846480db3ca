"""Encoders for chat templates in the form of each family, with tokenizers that fit them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from mlx_backend.tiny_tokenizer import MERGES, TEMPLATES
from tests.mlx_backend.template_sources import (
    GEMMA_LIKE,
    GLM_LIKE,
    HARMONY_LIKE,
    LLAMA_LIKE,
    MISTRAL_LIKE,
    QWEN_CODER_LIKE,
    QWEN_LIKE,
    QWEN_THINKING_LIKE,
)

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and whether its tokenizer puts the first one before text."""

    source: str
    special: tuple[str, ...]
    adds_bos: bool = False

    @property
    def names(self) -> dict[str, str]:
        return {"bos_token": self.special[0], "eos_token": self.special[-1]}


FAMILIES = {
    "chatml": Family(TEMPLATES["plain"], CHATML_TOKENS),
    "qwen": Family(QWEN_LIKE, CHATML_TOKENS),
    "qwen thinking": Family(QWEN_THINKING_LIKE, CHATML_TOKENS),
    "qwen coder": Family(QWEN_CODER_LIKE, CHATML_TOKENS),
    "empty thinking": Family(TEMPLATES["empty-thinking"], CHATML_TOKENS),
    "llama": Family(
        LLAMA_LIKE,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        adds_bos=True,
    ),
    "gemma": Family(GEMMA_LIKE, ("<bos>", "<start_of_turn>", "<end_of_turn>"), adds_bos=True),
    "mistral": Family(
        MISTRAL_LIKE,
        (
            "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
            "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "</s>",
        ),
        adds_bos=True,
    ),
    "strict": Family(TEMPLATES["strict"], CHATML_TOKENS),
    "harmony": Family(
        HARMONY_LIKE,
        (
            "<|start|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|end|>",
            "<|return|>",
        ),
    ),
    "glm": Family(
        GLM_LIKE,
        ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
         "<|observation|>"),
    ),
}  # fmt: skip


@cache
def byte_level(special: tuple[str, ...] = CHATML_TOKENS) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = []
    for merge in MERGES:
        left, right = merge.split(" ")
        if left in vocabulary and right in vocabulary:
            vocabulary.setdefault(left + right, len(vocabulary))
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_tokens(tokenizer, special)


@cache
def sentencepiece(scheme: str) -> Tokenizer:
    """Blanks as ▁, one put in front of text: `first` of the whole, `legacy` of each stretch."""
    characters = [chr(i) for i in range(33, 127)] + ["▁"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {character: 256 + i for i, character in enumerate(characters)}
    for merged in ("▁a", "he", "▁H"):
        vocabulary[merged] = len(vocabulary)
    merges = [("▁", "a"), ("h", "e"), ("▁", "H")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_tokens(tokenizer, CHATML_TOKENS)


def with_tokens(tokenizer: Tokenizer, special: tuple[str, ...]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    return tokenizer


def encoder_of(
    family: str,
    now: Callable[[], datetime] = lambda: datetime(2024, 5, 17, 12, 30),
    **options: Any,
) -> MlxPromptEncoder:
    """A fresh encoder, with nothing remembered."""
    chosen = FAMILIES[family]
    tokenizer = byte_level(chosen.special)
    bos = tokenizer.token_to_id(chosen.special[0]) if chosen.adds_bos else None
    template = JinjaTemplate(chosen.source, chosen.names)
    vocabulary = Vocabulary(tokenizer.get_vocab_size(), bos)
    return MlxPromptEncoder(tokenizer, template, vocabulary, now, **options)
