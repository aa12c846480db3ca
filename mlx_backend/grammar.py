"""Compiles what an answer has to look like, on any thread but the event loop's.

llguidance does it: a constraint becomes a matcher, from which every row gets a copy of its own.
A schema comes from outside, so everything about it has a limit: its size, the divisors whose
automata grow with them, the grammar's size, and the work that a step may cost the engine. A schema
that llguidance cannot enforce to the letter is refused; arguments of tools, which their tools check
anyway, are enforced as far as it goes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from mlx_backend.answer_grammar import AnswerWriting, Thought, only_json
from mlx_backend.control import ControlToken
from mlx_backend.errors import ConstraintRejected
from mlx_backend.memo import Memo
from mlx_backend.messages import CallableTool, Constraint, Grammar, Prompt
from mlx_backend.output.formats import AnswerFormat
from mlx_backend.output.lark import json_value, part_of

MOST_CHARACTERS = 1 << 20
MOST_DIVISOR_STATES = 100_000
"""In all `multipleOf` together: each makes an automaton with as many states as its digits say."""

_LIMITS = LLParserLimits(max_grammar_size=200_000, max_lexer_states=50_000, verbose_errors=False)
_TAG = re.compile("<.*>", re.DOTALL)
_MOST_COMPILED = 16
_MOST_TRIED_CHARACTERS = 2 << 20
_MOST_REASON_CHARACTERS = 300


class GrammarCompiler:
    """Compiles for one model. Any thread may call it; two at once may do the same work twice."""

    def __init__(self, tokenizer: Any, writing: AnswerWriting) -> None:
        """`tokenizer` is a `tokenizers.Tokenizer`."""
        self._tokenizer = tokenizer
        self._writing = writing
        self._vocabulary: LLTokenizer | None = None
        self._compiled: Memo[str, LLMatcher] = Memo(_MOST_COMPILED)
        self._can: Memo[str, bool] = Memo(_MOST_TRIED_CHARACTERS, lambda text, can: len(text))

    def compile(self, constraint: Constraint, prompt: Prompt) -> Grammar:
        """What the answer to `prompt` has to be. Raises ConstraintRejected."""
        if not self._writing.stop_ids:
            raise ConstraintRejected("this model has no token that ends an answer")
        text = self._text(constraint, self._writing.thought_in(prompt))
        matcher = self._compiled.get(text)
        if matcher is None:
            if constraint.schema is not None:  # a thought before it could hide what is wrong
                self._matcher(only_json(constraint.schema))
            matcher = self._matcher(text)
            self._compiled.put(text, matcher)
        return Grammar(constraint, matcher)

    def _text(self, constraint: Constraint, thought: Thought) -> str:
        try:
            _check_divisors([constraint.schema])
            tools = tuple(self._enforceable(tool) for tool in constraint.tools)
            text = self._writing.grammar(replace(constraint, tools=tools), thought)
        except (ValueError, TypeError, RecursionError) as error:  # a schema can be anything
            raise ConstraintRejected(f"the schema cannot be read: {error}") from error
        if len(text) > MOST_CHARACTERS:
            raise ConstraintRejected(f"the schemas are larger than {MOST_CHARACTERS} characters")
        return text

    def _enforceable(self, tool: CallableTool) -> CallableTool:
        """The tool with what cannot be enforced of its schema left out."""
        if tool.schema is None:
            return tool
        schema = {**tool.schema, "type": "object"}
        if self._can_enforce(schema):
            return replace(tool, schema=schema)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping):
            return replace(tool, schema=None)
        kept = {
            name: part if self._can_enforce(part_of(schema, part)) else {}
            for name, part in properties.items()
        }
        required = schema.get("required")
        names = [name for name in required if name in kept] if isinstance(required, list) else []
        simpler = part_of(schema, {"type": "object", "properties": kept, "required": names})
        return replace(tool, schema=simpler if self._can_enforce(simpler) else None)

    def _can_enforce(self, schema: Mapping[str, Any]) -> bool:
        lark = f"start: {json_value(schema)}"
        known = self._can.get(lark)
        if known is None:
            known = self._tries(schema, lark)
            self._can.put(lark, known)
        return known

    def _tries(self, schema: Mapping[str, Any], lark: str) -> bool:
        try:
            _check_divisors([schema])
        except ConstraintRejected:
            return False
        text = json.dumps({"grammars": [{"lark_grammar": lark}]})
        return not LLMatcher(self._known(), text, log_level=0, limits=_LIMITS).is_error()

    def _matcher(self, text: str) -> LLMatcher:
        matcher = LLMatcher(self._known(), text, log_level=0, limits=_LIMITS)
        if not matcher.is_error():
            matcher.compute_bitmask()  # finds out what never can begin
        if matcher.is_error() or matcher.is_stopped():
            raise ConstraintRejected(f"the schema cannot be enforced: {_reason(matcher)}")
        return matcher

    def _known(self) -> LLTokenizer:
        if self._vocabulary is None:
            self._vocabulary = make_vocabulary(self._tokenizer, self._writing)
        return self._vocabulary


def compiler_for(
    tokenizer: Any,
    format: AnswerFormat,
    control: Iterable[ControlToken],
    stop_ids: Iterable[int],
) -> GrammarCompiler:
    """The compiler of a model that writes its answers so."""
    token_ids = {token.text: token.id for token in control}
    added = tokenizer.get_added_tokens_decoder().items()
    marks = {entry.content: token for token, entry in added if entry.content in format.marks}
    ends = sorted(token for token in stop_ids if tokenizer.id_to_token(token) is not None)
    return GrammarCompiler(tokenizer, AnswerWriting(format, token_ids | marks, ends))


def make_vocabulary(tokenizer: Any, writing: AnswerWriting) -> LLTokenizer:
    """llguidance's view of a tokenizer. Takes a second for a large one, nearly all without the GIL.

    Raises ConstraintRejected for one that is neither byte-level nor with byte fallback.
    """
    described = _without_marks(json.loads(tokenizer.to_str()), set(writing.token_ids.values()))
    ends, slices = list(writing.stop_ids), LLTokenizer.json_slices()
    try:
        return LLTokenizer(json.dumps(described), eos_token=ends, slices=slices)
    except Exception as error:  # whatever it does not like about a tokenizer
        raise ConstraintRejected(f"this model's tokenizer takes no constraint: {error}") from error


def _without_marks(described: dict[str, Any], control: set[int]) -> dict[str, Any]:
    """A tokenizer.json whose control tokens have names that no text has.

    Where a grammar leaves one text only, llguidance encodes that text to find its tokens: a
    string that spells a control token would become that token, which the grammar then refuses.
    """
    model = described["model"]
    for entry in described["added_tokens"]:
        token, text = entry["id"], entry["content"]
        if token not in control and not _TAG.fullmatch(text):  # llguidance takes tags for control
            continue
        entry["content"], entry["special"] = f"\ue000{token}\ue000", True
        if isinstance(model["vocab"], list):
            if token < len(model["vocab"]):
                model["vocab"][token][0] = entry["content"]
        elif text in model["vocab"]:
            model["vocab"][entry["content"]] = model["vocab"].pop(text)
        if model.get("unk_token") == text:
            model["unk_token"] = entry["content"]
    return {**described, "post_processor": None}


def _check_divisors(schemas: Iterable[Any]) -> None:
    states = sum(map(_states_of, _divisors(schemas)))
    if states > MOST_DIVISOR_STATES:
        raise ConstraintRejected("the schema cannot be enforced: multipleOf has too many digits")


def _divisors(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, Mapping):
            if "multipleOf" in value:
                yield value["multipleOf"]
            yield from _divisors(value.values())
        elif isinstance(value, list):
            yield from _divisors(value)


def _states_of(divisor: Any) -> int:
    """The divisor without its decimal point."""
    if isinstance(divisor, bool) or not isinstance(divisor, (int, float)):
        return 0
    try:
        digits = Decimal(str(divisor)).normalize().as_tuple().digits
    except InvalidOperation:
        return 0
    return int("".join(map(str, digits[:10])))


def _reason(matcher: LLMatcher) -> str:
    lines = [line.strip(" ^") for line in matcher.get_error().splitlines()]
    said = " ".join(line for line in lines if line and not line.startswith("<"))
    if not said or said.startswith("NoExtension"):
        return "nothing is valid by it"
    return said[:_MOST_REASON_CHARACTERS]
