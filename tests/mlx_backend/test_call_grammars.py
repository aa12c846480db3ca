"""What a format's grammar lets through, its reader reads as calls: walked at random, no model."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from mlx_backend.answer_grammar import AnswerWriting
from mlx_backend.answers import Answers
from mlx_backend.grammar import GrammarCompiler
from mlx_backend.grammar_mask import GrammarMask
from mlx_backend.messages import (
    AnswerForm,
    CallableTool,
    CallArguments,
    CallFinished,
    CallStarted,
    Constraint,
    Grammar,
    Piece,
    Prompt,
    token_ids,
)
from mlx_backend.output.call_format import Spelling
from mlx_backend.output.formats import (
    CALL_FORMATS,
    AnswerFormat,
    answer_format,
    harmony_format,
)
from mlx_backend.output.harmony import Harmony
from mlx_backend.tiny_tokenizer import STOP_TOKENS, make_tokenizer
from mlx_backend.token_text import TokenText

PROPERTIES = {
    "sky": {"enum": ["clear", "a </b> \n cloud"], "type": "string"},
    "degrees": {"type": "integer", "minimum": -9, "maximum": 40},
    "hours": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
    "is_dry": {"type": "boolean"},
}
WEATHER = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["sky", "degrees"],
    "additionalProperties": False,
}
NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (CallableTool("get_weather", WEATHER), CallableTool("get_time", NOTHING))


def format_named(name: str, *, with_tokens: bool = True) -> AnswerFormat:
    if name == Harmony.name:
        return harmony_format(Harmony.marks)
    kind = next(kind for kind in CALL_FORMATS if kind.name == name)
    tokens = kind.marks if with_tokens else ()
    found = answer_format(kind(Spelling(frozenset(tokens))), "no thoughts", tokens)
    return replace(found, think_tags=())


NAMES = [*(kind.name for kind in CALL_FORMATS), Harmony.name]
CAN_BE_FORCED = [name for name in NAMES if format_named(name).grammar(TOOLS, True) is not None]


class Writer:
    """Writes answers by a grammar, each token drawn from all that are allowed."""

    def __init__(self, format: AnswerFormat) -> None:
        self.is_harmony = format.name == Harmony.name
        self.tokenizer = Tokenizer.from_str(make_tokenizer().to_str())
        self.tokenizer.add_special_tokens([AddedToken(m, special=True) for m in format.marks])
        added = self.tokenizer.get_added_tokens_decoder()
        ids = {entry.content: token for token, entry in added.items()}
        ends = [*format.ending_marks] or STOP_TOKENS
        self.stop_ids = frozenset(ids[mark] for mark in ends)
        self.compiler = GrammarCompiler(
            self.tokenizer, AnswerWriting(format, ids, sorted(self.stop_ids))
        )
        marks = {token: text for text, token in ids.items() if text in format.marks}
        self.answers = Answers(TokenText(self.tokenizer), format, marks, frozenset(), self.stop_ids)

    def answer(self, grammar: Grammar, seed: int) -> list[int]:
        """Ids up to the turn's end; calls are few, for the end is taken where it may be."""
        begins = "<|channel|>commentary" if self.is_harmony else ""
        said: list[int] = self.tokenizer.encode(begins).ids
        random, mask = np.random.default_rng(seed), GrammarMask(grammar, token_ids(said))
        logits = mx.zeros((1, self.tokenizer.get_vocab_size()))
        for _ in range(3_000):
            masked = np.array(mask(mx.array(said or [0]), logits)[0])
            assert mask.error is None
            allowed = np.flatnonzero(masked == 0)
            if self.stop_ids.issuperset(allowed) or (
                self.stop_ids & set(allowed.tolist()) and random.random() < 0.6
            ):
                return said
            said.append(int(random.choice(allowed)))
        raise AssertionError(f"no end: {self.tokenizer.decode(said)}")

    def pieces(self, said: list[int]) -> list[Piece]:
        output = self.answers.output(AnswerForm(tools=TOOLS))
        told = [piece for token in said for piece in output.push([token])]
        return [*told, *output.finish()]


def calls(pieces: list[Piece]) -> list[tuple[str, Any]]:
    """Name and arguments of each call; everything else that was told fails."""
    names: dict[int, str] = {}
    texts: dict[int, str] = {}
    finished = []
    for piece in pieces:
        assert isinstance(piece, (CallStarted, CallArguments, CallFinished)), piece
        if isinstance(piece, CallStarted):
            names[piece.index] = piece.name
        elif isinstance(piece, CallArguments):
            texts[piece.index] = texts.get(piece.index, "") + piece.json
        else:
            finished.append(piece.index)
    assert finished == list(names)
    return [(names[index], json.loads(texts.get(index) or "{}")) for index in finished]


def assert_is_asked_for(name: str, arguments: dict[str, Any]) -> None:
    if name == "get_time":
        assert arguments == {}
        return
    assert name == "get_weather"
    assert arguments["sky"] in PROPERTIES["sky"]["enum"]  # type: ignore[operator]
    assert -9 <= arguments["degrees"] <= 40
    assert isinstance(arguments.get("is_dry", True), bool)
    assert set(arguments.get("hours", [])) <= {1, 2}
    assert set(arguments) <= set(PROPERTIES)


def test_all_ways_to_write_calls_can_be_forced_but_one() -> None:
    assert set(NAMES).difference(CAN_BE_FORCED) == {"minimax-m3"}


@pytest.mark.parametrize("with_tokens", [True, False])
@pytest.mark.parametrize("name", CAN_BE_FORCED)
def test_what_a_forced_call_may_look_like_is_read_as_that_call(
    name: str, with_tokens: bool
) -> None:
    format = format_named(name, with_tokens=with_tokens)
    writer = Writer(format)
    for may_repeat in (False, True):
        constraint = Constraint(tools=TOOLS, may_repeat=may_repeat)
        grammar = writer.compiler.compile(constraint, Prompt(token_ids([0])))
        counts = []
        for seed in range(3):
            found = calls(writer.pieces(writer.answer(grammar, seed)))
            for call in found:
                assert_is_asked_for(*call)
            counts.append(len(found))
        assert min(counts) >= 1
        assert max(counts) == 1 or may_repeat


@pytest.mark.parametrize("with_tokens", [True, False])
def test_a_forced_call_of_muse_spark_says_first_which_tool_it_is_for(with_tokens: bool) -> None:
    writer = Writer(format_named("muse-spark", with_tokens=with_tokens))
    constraint = Constraint(tools=TOOLS[:1])
    grammar = writer.compiler.compile(constraint, Prompt(token_ids([0])))
    for seed in range(3):
        text = writer.tokenizer.decode(writer.answer(grammar, seed), skip_special_tokens=False)
        header = text.removeprefix("<|start|>assistant")
        assert header.startswith(" to=get_weather<|message|><atem:function_calls>")
