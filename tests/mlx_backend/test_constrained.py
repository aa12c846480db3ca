"""Answers under a grammar, of models that babble: alone, beside others, parked and cut."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from pydantic import BaseModel, ConfigDict, Field

from mlx_backend.backend import MlxBackend
from mlx_backend.interface import Snapshot
from mlx_backend.live_row import LiveRow
from mlx_backend.loading import MlxModel, load
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
    Sampling,
    TextPiece,
    ThoughtPiece,
    TokenIds,
    token_ids,
)
from mlx_backend.tiny_models import write_folder
from mlx_backend.tiny_tokenizer import TEMPLATES, token_id
from tests.mlx_backend.conversations import ListeningModel
from tests.mlx_backend.grammars import Model
from tests.mlx_backend.tiny_rows import some_tokens, tiny_layout, tiny_model

GIB = 1 << 30
PROMPTS = [some_tokens(n, seed=n) for n in (7, 200, 41, 90)]
MODEL = Model(TEMPLATES["plain"])
ANSWERS_AT_ONCE = ((token_id("<think>"), -100.0),)
ENDS_ITS_THOUGHT = ((token_id("</think>"), 100.0),)


class Weather(BaseModel):
    """Kept small: a model that babbles fills every room it is given."""

    model_config = ConfigDict(extra="forbid")

    place: Annotated[str, Field(max_length=8)]
    degrees: Annotated[int, Field(ge=-40, le=60)]
    sky: Literal["clear", "clouds"] | None
    hours: Annotated[list[Annotated[int, Field(ge=0, le=24)]], Field(max_length=2)]


SCHEMA = Weather.model_json_schema()


def constrained(seed: int, constraint: Constraint | None = None) -> Sampling:
    grammar = MODEL.compile(constraint or Constraint(SCHEMA))
    return Sampling(temperature=1.0, seed=seed, grammar=grammar, logit_bias=ANSWERS_AT_ONCE)


@dataclass
class Said:
    """A row and what it said so far; it is over at its turn's end."""

    row: LiveRow
    tokens: list[int] = field(default_factory=list)
    error: str | None = None

    @property
    def is_over(self) -> bool:
        return self.error is not None or self.tokens[-1:] in [[stop] for stop in MODEL.stop_ids]

    @property
    def text(self) -> str:
        assert self.is_over
        decoded: str = MODEL.tokenizer.decode(self.tokens, skip_special_tokens=True)
        return decoded


class Rig:
    """A backend on a tiny model, which counts its forward passes by the rows in each."""

    def __init__(self, kind: str = "tiny-full") -> None:
        self.listener = ListeningModel(tiny_model(kind))
        self.backend = MlxBackend(self.listener, tiny_layout(kind), GIB)

    def start(
        self, prompt: TokenIds, sampling: Sampling, snapshot: Snapshot | None = None, said: int = 0
    ) -> Said:
        row = self.backend.open_row(snapshot, len(prompt) + 64)
        if row.length < len(prompt) - 1:
            self.backend.read(row, prompt[row.length : -1])
        self.backend.start_decoding(row, int(prompt[-1]), sampling, prompt, said)
        return Said(row)

    def step(self, talks: Iterable[Said]) -> None:
        by_row = {id(said.row): said for said in talks}
        for one in self.backend.step():
            said = by_row[id(one.row)]
            said.error = one.error
            if one.error is None:
                said.tokens.append(one.token)
            if said.is_over:
                self.backend.release(one.row)

    def finish(self, talks: Sequence[Said], most: int = 500) -> None:
        """Steps until every answer is over or has `most` tokens."""
        for _ in range(most):
            self.step(talks)
            if all(said.is_over for said in talks):
                return

    def alone(self, prompt: TokenIds, sampling: Sampling, most: int = 500) -> Said:
        said = self.start(prompt, sampling)
        self.finish([said], most)
        self.backend.release(said.row)
        return said


@pytest.mark.parametrize("kind", ["tiny-full", "tiny-sliding", "tiny-hybrid", "concatenating"])
def test_answers_of_models_that_babble_are_valid_alone_and_beside_others(kind: str) -> None:
    rig = Rig(kind)
    plain = Sampling(temperature=1.0, seed=5)
    expected = rig.alone(PROMPTS[0], plain, most=40)
    talks = [rig.start(PROMPTS[2], constrained(0))]
    for _ in range(3):
        rig.step(talks)
    beside = rig.start(PROMPTS[0], plain)
    talks += [rig.start(PROMPTS[1], constrained(1)), rig.start(PROMPTS[3], constrained(2))]
    rig.finish([*talks, beside], most=40)
    assert beside.tokens == expected.tokens
    rig.backend.release(beside.row)
    rig.finish(talks)
    for said in talks:
        Weather.model_validate_json(said.text, strict=True)
    assert rig.alone(PROMPTS[1], constrained(1)).tokens == talks[1].tokens


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_valid_by_any_seed(seed: int) -> None:
    sampling = constrained(seed)
    said = Rig().alone(PROMPTS[seed % 4], sampling)
    Weather.model_validate_json(said.text, strict=True)
    greedy = Sampling(grammar=sampling.grammar, logit_bias=ANSWERS_AT_ONCE, top_p=0.5, top_k=3)
    Weather.model_validate_json(Rig().alone(PROMPTS[seed % 4], greedy).text, strict=True)


def test_rows_without_a_grammar_share_nothing_with_rows_that_have_one() -> None:
    rig = Rig()
    plain = [rig.start(PROMPTS[i], Sampling()) for i in (0, 2)]
    bound = [rig.start(PROMPTS[i], constrained(i)) for i in (0, 2)]
    for _ in range(4):  # who may share a batch does by then
        rig.step([*plain, *bound])
    assert plain[0].row.caches is plain[1].row.caches
    assert bound[0].row.caches is bound[1].row.caches
    assert plain[0].row.caches is not bound[0].row.caches
    assert rig.backend.counters.batch_copies == 2
    before = [len(said.tokens) for said in (*plain, *bound)]
    for _ in range(5):
        rig.step([*plain, *bound])
    assert [len(s.tokens) for s in (*plain, *bound)] == [count + 5 for count in before]


def test_a_row_without_a_grammar_takes_the_steps_it_would_take_alone() -> None:
    """One forward pass for each token and one draw ahead, never one more for others' masks."""

    def passes(*others: Sampling) -> tuple[int, list[int]]:
        rig = Rig()
        said = [rig.start(PROMPTS[0], Sampling())]
        said += [rig.start(PROMPTS[2], sampling) for sampling in others]
        calls: list[Any] = []
        counted = rig.listener.model

        def count(tokens: Any, cache: Any) -> Any:
            calls.append(cache)
            return counted(tokens, cache=cache)

        rig.listener.model = count
        for _ in range(10):
            rig.step(said)
        return sum(cache is said[0].row.caches for cache in calls), said[0].tokens

    assert passes() == passes(constrained(1)) == (10, passes()[1])


def test_the_device_has_the_other_rows_work_while_masks_are_made() -> None:
    rig, order = Rig(), []
    bound = rig.start(PROMPTS[0], constrained(0))
    plain = rig.start(PROMPTS[2], Sampling())
    listened = rig.listener.model

    def note(tokens: Any, cache: Any) -> Any:
        order.append("plain" if cache is plain.row.caches else "bound")
        return listened(tokens, cache=cache)

    rig.listener.model = note
    for _ in range(3):
        rig.step([bound, plain])
    assert order == ["plain", "bound"] * 3


def test_a_parked_row_goes_on_within_its_grammar_as_if_it_had_not_been() -> None:
    rig, sampling = Rig(), constrained(4)
    through = rig.alone(PROMPTS[1], sampling)
    for cut in (1, len(through.tokens) // 2, len(through.tokens) - 2):
        said = rig.start(PROMPTS[1], sampling)
        for _ in range(cut):
            rig.step([said])
        row = said.row
        snapshot = Snapshot(row.length, (rig.backend.capture_span(row, 0, row.length),))
        drawn = rig.backend.stop_decoding(row)
        assert drawn.error is None
        tokens = [*said.tokens, drawn.token]
        past = np.concatenate([PROMPTS[1], tokens]).astype(np.int32)
        resumed = rig.start(past, sampling, snapshot, said=len(tokens))
        if not set(tokens) & MODEL.stop_ids:
            rig.finish([resumed])
        assert [*tokens, *resumed.tokens] == through.tokens


def test_an_answer_cut_in_the_middle_leaves_its_neighbours_alone() -> None:
    rig = Rig()
    expected = rig.alone(PROMPTS[0], constrained(3))
    cut, stays = rig.start(PROMPTS[2], constrained(1)), rig.start(PROMPTS[0], constrained(3))
    for _ in range(4):
        rig.step([cut, stays])
    rig.backend.release(cut.row)
    rig.finish([stays])
    assert stays.tokens == expected.tokens


def test_a_grammar_that_was_left_fails_its_row_alone() -> None:
    rig = Rig()
    expected = rig.alone(PROMPTS[0], constrained(3))
    stays = rig.start(PROMPTS[0], constrained(3))
    past = np.concatenate([PROMPTS[2], MODEL.ids("no JSON")]).astype(np.int32)
    strays = rig.start(past, constrained(1), said=len(MODEL.ids("no JSON")))
    rig.finish([stays, strays])
    assert strays.tokens == []
    assert strays.error is not None
    assert "grammar could not be applied" in strays.error
    assert stays.tokens == expected.tokens


def test_penalties_and_biases_cannot_lead_out_of_a_grammar() -> None:
    push = ((token_id("<|im_end|>"), 100.0), (MODEL.ids("q")[0], 100.0), *ANSWERS_AT_ONCE)
    sampling = Sampling(
        temperature=1.0,
        presence_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias=push,
        grammar=constrained(0).grammar,
        alternatives=2,
    )
    said = Rig().alone(PROMPTS[0], sampling)
    assert Weather.model_validate_json(said.text, strict=True).place == "q" * 8


def test_blanks_cannot_go_on_for_ever() -> None:
    blanks = {token for text in " \n\t" for token in MODEL.ids(text)}
    blanks |= {MODEL.tokenizer.token_to_id(text) for text in ("ĊĊ", "ĠĠ", "ĠĠĠĠ")}
    sampling = Sampling(
        grammar=constrained(0).grammar,
        logit_bias=(*((token, 50.0) for token in blanks), *ANSWERS_AT_ONCE),
    )
    said = Rig().alone(PROMPTS[0], sampling, most=600)
    Weather.model_validate_json(said.text, strict=True)
    assert "\n" * 2 not in said.text
    assert " " * 42 not in said.text


TOOLS = (
    CallableTool("weather", SCHEMA),
    CallableTool("wait", {"properties": {}, "additionalProperties": False}),
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> MlxModel:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_folder("tiny-full", folder, template="plain")
    return load(str(folder))


def answered(
    model: MlxModel,
    prompt: Prompt,
    grammar: Grammar,
    tools: Sequence[CallableTool] = (),
    seed: int = 0,
    bias: tuple[tuple[int, float], ...] = ANSWERS_AT_ONCE,
    said: str = "",
    most: int = 600,
) -> tuple[list[Piece], bool]:
    """What a client is told of an answer that began with `said`, and whether the model ended it."""
    began = MODEL.ids(said)
    past = token_ids([*prompt.tokens, *began])
    row = model.backend.open_row(None, len(past) + 64)
    model.backend.read(row, past[:-1])
    sampling = Sampling(temperature=1.0, seed=seed, grammar=grammar, logit_bias=bias)
    model.backend.start_decoding(row, int(past[-1]), sampling, past, len(began))
    form = AnswerForm(tools=tuple(tools), begins_in_thought=prompt.begins_in_thought)
    output, is_ended = model.output(form), False
    pieces = [*output.push(began)]
    for _ in range(most):
        (one,) = model.backend.step()
        assert one.error is None
        is_ended = one.token in model.info.stop_ids
        if is_ended:
            break
        pieces += output.push([one.token])
    model.backend.release(row)
    return [*pieces, *output.finish(is_cut=not is_ended)], is_ended


def joined(pieces: Sequence[Piece], kind: type[TextPiece] | type[ThoughtPiece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


def calls(pieces: Sequence[Piece]) -> list[tuple[str, Any]]:
    """The finished calls: name and arguments."""
    names = {p.index: p.name for p in pieces if isinstance(p, CallStarted)}
    texts = dict.fromkeys(names, "")
    for piece in pieces:
        if isinstance(piece, CallArguments):
            texts[piece.index] += piece.json
    done = [piece.index for piece in pieces if isinstance(piece, CallFinished)]
    assert len(done) == len(names)
    return [(names[index], json.loads(texts[index])) for index in done]


HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("seed", range(2))
def test_a_forced_call_comes_out_as_a_call_of_that_tool(loaded: MlxModel, seed: int) -> None:
    prompt = loaded.prompts.chat(HELLO)
    grammar = loaded.compile(Constraint(tools=TOOLS[:1], may_repeat=False), prompt)
    pieces, _ = answered(loaded, prompt, grammar, TOOLS, seed)
    ((name, arguments),) = calls(pieces)
    assert name == "weather"
    Weather.model_validate(arguments)
    assert joined(pieces, TextPiece) == ""
    any_of_them = loaded.compile(Constraint(tools=TOOLS), prompt)
    pieces, _ = answered(loaded, prompt, any_of_them, TOOLS, seed, most=120)
    assert {name for name, _ in calls_begun(pieces)} <= {"weather", "wait"}
    assert joined(pieces, TextPiece) == ""


def calls_begun(pieces: Sequence[Piece]) -> list[tuple[str, int]]:
    begun = [(piece.name, piece.index) for piece in pieces if isinstance(piece, CallStarted)]
    assert begun
    return begun


def test_the_thought_comes_first_and_the_content_is_json_alone(loaded: MlxModel) -> None:
    prompt = loaded.prompts.chat(HELLO)
    begun = Prompt(token_ids([*prompt.tokens, token_id("<think>")]), begins_in_thought=True)
    thought = 'first {"place": <tool_call> then'
    for given, said in ((begun, thought), (prompt, f"<think>{thought}")):
        grammar = loaded.compile(Constraint(SCHEMA), given)
        pieces, is_ended = answered(loaded, given, grammar, said=said, bias=ENDS_ITS_THOUGHT)
        assert is_ended
        assert joined(pieces, ThoughtPiece) == thought
        Weather.model_validate_json(joined(pieces, TextPiece), strict=True)


def test_an_answer_cut_by_its_limit_is_a_beginning_of_json(loaded: MlxModel) -> None:
    prompt = loaded.prompts.chat(HELLO)
    grammar = loaded.compile(Constraint(SCHEMA), prompt)
    pieces, is_ended = answered(loaded, prompt, grammar, most=9)
    assert not is_ended
    assert joined(pieces, TextPiece).startswith("{")
    forced = loaded.compile(Constraint(tools=TOOLS), prompt)
    pieces, _ = answered(loaded, prompt, forced, TOOLS, most=30)
    assert not any(isinstance(piece, CallFinished) for piece in pieces)
