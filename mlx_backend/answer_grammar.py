"""What an answer has to look like, as text for llguidance: thoughts first, then JSON or calls.

Thinking is part of the grammar, as the model's family writes it: it may hold anything but the
turn's end, and what is asked for begins where it ends. Where a family's marks are single tokens,
those tokens are meant; the same characters within JSON are text.

Nothing here is compiled; that, and its limits, is `grammar`'s.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from mlx_backend.errors import ConstraintRejected
from mlx_backend.messages import CallableTool, Constraint, Prompt
from mlx_backend.output.formats import AnswerFormat
from mlx_backend.output.harmony import CHANNEL, CONSTRAIN, END, MESSAGE, START, Harmony
from mlx_backend.output.lark import ANY_OBJECT, WHITE_SPACE, first_token, literal, mark, tape_text
from mlx_backend.output.tape import MARK

_MARKED = re.compile(MARK + r'("(?:[^"\\]|\\.)*")')
_TAIL_TOKENS = 4  # a closing tag and line breaks
_BREAKS = r"/\n{0,2}/"  # what models write between a thought and their answer
_TEXT, _ANY_TEXT = r"/(.|\n)+/", r"/(.|\n)*/"


class Thought(Enum):
    """Where an answer begins: in a thought, behind one, or where the model may begin one."""

    BEGUN = "begun"
    OVER = "over"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True)
class AnswerWriting:
    """How a model writes its answers, the ids of its control tokens, and those that end a turn."""

    format: AnswerFormat
    token_ids: Mapping[str, int]
    stop_ids: Sequence[int]

    def thought_in(self, prompt: Prompt) -> Thought:
        """Where the answer to `prompt` begins."""
        if prompt.begins_in_thought:
            return Thought.BEGUN
        closings = [first_token(tags.closing, self.token_ids) for tags in self.format.think_tags]
        tail = prompt.tokens[-_TAIL_TOKENS:].tolist()
        is_over = any(self.token_ids[closing] in tail for closing in closings if closing)
        return Thought.OVER if is_over else Thought.POSSIBLE

    def grammar(self, constraint: Constraint, thought: Thought = Thought.POSSIBLE) -> str:
        """The whole answer. Raises ConstraintRejected where calls cannot be enforced."""
        parts: list[dict[str, Any]] = []
        if constraint.schema is not None:
            parts.append({"name": "json", "json_schema": _enforced(constraint.schema)})
        if constraint.tools:
            calls = self._calls(constraint.tools, constraint.may_repeat)
            parts.append({"name": "calls", "lark_grammar": self._resolved(calls)})
        names = [part["name"] for part in parts]
        rules = self._harmony(names) if self._is_harmony else self._tagged(names, thought)
        main = {"lark_grammar": self._resolved("\n".join(rules))}
        return json.dumps({"grammars": [main, *parts]})

    def _calls(self, tools: Sequence[CallableTool], may_repeat: bool) -> str:
        found = self.format.grammar(tools, may_repeat)
        if found is None:
            raise ConstraintRejected("this model's way to write tool calls cannot be enforced")
        return found

    @property
    def _is_harmony(self) -> bool:
        return self.format.name == Harmony.name

    def _harmony(self, names: Sequence[str]) -> list[str]:
        """Analysis in any number of messages, then a final one or a call."""
        if not self.format.marks.issuperset(Harmony.marks):
            raise ConstraintRejected("this model's tokenizer lacks the marks of its channels")
        start, end, message, channel, constrain = (
            mark(MARK + name) for name in (START, END, MESSAGE, CHANNEL, CONSTRAIN)
        )
        anything = self._anything_but(END)
        final = f'{channel} "final" (/ ?/ {constrain} "json")? {message} @json'
        return [
            f"start: analysis* ({' | '.join(f'answer_{name}' for name in names)})",
            f'analysis: {channel} "analysis" {message} {anything} {end} {start} "assistant"',
            *(f"answer_{name}: {final if name == 'json' else '@calls'}" for name in names),
        ]

    def _tagged(self, names: Sequence[str], thought: Thought) -> list[str]:
        answer = " | ".join(f"@{name}" for name in names)
        return [*self._thoughts(thought), f"answer: {answer}"]

    def _thoughts(self, thought: Thought) -> list[str]:
        """`start`: an `answer`, behind the thought that is begun or that the model may begin."""
        pairs = [(tags.opening, tags.closing) for tags in self.format.think_tags]
        if not pairs or thought is Thought.OVER:
            return ["start: answer"]
        rules = [f"start: thought {_BREAKS} answer"]
        if thought is Thought.POSSIBLE:
            rules[0] += " | answer"
        whole = []
        for i, (opening, closing) in enumerate(pairs):
            begun = thought is not Thought.POSSIBLE
            whole.append(f"{'' if begun else tape_text(opening, self.token_ids)} rest_{i}")
            if token := first_token(closing, self.token_ids):
                end = tape_text(closing, self.token_ids)
                rules.append(f"rest_{i}: {self._anything_but(token)} {end}")
            else:
                rules.append(f"rest_{i}[suffix={literal(closing)}]: {_ANY_TEXT}")
        return [*rules, f"thought: {' | '.join(whole)}"]

    def _anything_but(self, closing: str) -> str:
        """Text and control tokens, without the one that ends it and those that end a turn."""
        ends = sorted({self.token_ids[closing], *self.stop_ids})
        return f"({_TEXT} | <[^{','.join(map(str, ends))}]>)*"

    def _resolved(self, lark: str) -> str:
        """The grammar with its marks as ids."""
        return _MARKED.sub(lambda found: f"<[{self.token_ids[json.loads(found[1])]}]>", lark)


def only_json(schema: Mapping[str, Any]) -> str:
    """A grammar of JSON alone."""
    return json.dumps({"grammars": [{"json_schema": _enforced(schema)}]})


def _enforced(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with white space bounded; what cannot be enforced in it is an error."""
    return {**(schema or ANY_OBJECT), "x-guidance": {"whitespace_pattern": WHITE_SPACE}}
