"""A tokenizer and a template as grammars see them, for the tests of grammars."""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from mlx_backend.answers import find_answers
from mlx_backend.control import find_control_tokens
from mlx_backend.grammar import GrammarCompiler, compiler_for
from mlx_backend.grammar_mask import GrammarMask
from mlx_backend.messages import Constraint, Grammar, Prompt, token_ids
from mlx_backend.tiny_tokenizer import STOP_TOKENS, make_tokenizer

PLAIN = Prompt(token_ids([0]))
IN_THOUGHT = Prompt(token_ids([0]), begins_in_thought=True)


class Model:
    """A tokenizer and a template, and which tokens are allowed behind a text."""

    def __init__(
        self,
        template: str = "",
        tokenizer: Tokenizer | None = None,
        stop: Sequence[str] = STOP_TOKENS,
    ) -> None:
        self.tokenizer = tokenizer or make_tokenizer()
        added = self.tokenizer.get_added_tokens_decoder()
        self.stop_ids = {self.tokenizer.token_to_id(text) for text in stop}
        self.compiler: GrammarCompiler = compiler_for(
            self.tokenizer,
            find_answers(self.tokenizer, template).format,
            find_control_tokens(added, template),
            self.stop_ids,
        )

    def compile(self, constraint: Constraint, prompt: Prompt = PLAIN) -> Grammar:
        return self.compiler.compile(constraint, prompt)

    def ids(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return found

    def allowed(self, grammar: Grammar, said: str = "") -> set[int] | None:
        """The tokens that may follow `said`; None if that is no beginning of an answer."""
        return self.allowed_after(grammar, self.ids(said))

    def allowed_after(self, grammar: Grammar, said: Sequence[int]) -> set[int] | None:
        mask = GrammarMask(grammar, token_ids(said))
        size = self.tokenizer.get_vocab_size()
        logits = mask(mx.array([0]), mx.zeros((1, size)))
        return None if mask.error else set(np.flatnonzero(np.array(logits[0]) == 0).tolist())

    def is_whole(self, grammar: Grammar, said: str) -> bool:
        """Whether `said` is an answer, so that the turn may end behind it."""
        allowed = self.allowed(grammar, said)
        return allowed is not None and self.stop_ids <= allowed
