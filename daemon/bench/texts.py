"""Deterministic text of the kinds that agents send: instructions, tool schemas, source, prose.

Sizes are given in tokens and met within a word or a line by counting characters, with the
characters per token of the model at hand. Equal seeds and labels write equal text; different
labels differ from their first words on, so nothing is shared by accident.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

_NOUN_LIST = (
    "account adapter archive batch branch bucket buffer cache channel chunk client cluster column "
    "config cursor daemon device digest driver edge entry event field filter frame gateway graph "
    "handle header index invoice job kernel ledger loader lock message meter mirror module node "
    "offset order packet parser patch path payload policy pool prefix probe queue record region "
    "report request retry route row sample schema segment session shard signal snapshot socket "
    "source span store stream table target task ticket token trace tree user value vector window"
)
_VERB_LIST = (
    "append apply build check close collect commit compare copy count create decode delete drain "
    "drop emit encode expand fetch filter find flush fold format insert join keep list load lock "
    "map mark match measure merge move open order pack parse pin plan poll publish push read "
    "reduce release rename replace reset resolve restore scan send set shift sort split start "
    "store swap sync take touch trim unpack update verify walk write"
)
_TOOL_LIST = (
    "read_file write_file edit_file list_folder search_text search_names run_command read_output "
    "stop_command fetch_page ask_user plan_steps start_agent wait_agent apply_patch show_diff"
)
_TYPES: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 16},
    {"type": "integer", "minimum": 0, "maximum": 99},
    {"type": "string", "maxLength": 8},
)
"""Bounded, so that a call which a grammar asks of a model of random weights comes to an end."""
_NOUNS, _VERBS, _TOOL_NAMES = _NOUN_LIST.split(), _VERB_LIST.split(), _TOOL_LIST.split()


@dataclass(frozen=True, slots=True)
class Author:
    """Writes every text of one scenario. `seed` keeps scenarios apart from each other."""

    seed: str
    characters_per_token: float = 1.0

    def prose(self, label: str, tokens: int) -> str:
        """Sentences, as a user's request, a system text or a summary has them."""
        random = Random(f"{self.seed}/{label}")
        sentences = [f"{label.capitalize()}."]
        return self._fill(sentences, tokens, " ", lambda: _sentence(random))

    def source(self, path: str, tokens: int) -> str:
        """A file as a tool result shows it: numbered lines of code that name each other."""
        random = Random(f"{self.seed}/{path}")
        lines = [f"{path} ({tokens} tokens)"]
        return self._fill(lines, tokens, "\n", lambda: _code_line(random, len(lines)))

    def tools(self, label: str, count: int, tokens: int) -> tuple[dict[str, Any], ...]:
        """`count` function definitions of about `tokens` tokens together."""
        names = [_TOOL_NAMES[i % len(_TOOL_NAMES)] + "_" * (i // 16) for i in range(count)]
        return tuple(self._tool(label, name, tokens // count) for name in names)

    def _tool(self, label: str, name: str, tokens: int) -> dict[str, Any]:
        random = Random(f"{self.seed}/{label}/{name}")
        properties = dict(zip(random.sample(_NOUNS, 3), _TYPES, strict=True))
        schema = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
        left = tokens - round(len(json.dumps(schema)) / self.characters_per_token) - 40
        description = self.prose(f"{label} {name}", max(8, left))
        function = {"name": name, "description": description, "parameters": schema}
        return {"type": "function", "function": function}

    def _fill(self, pieces: list[str], tokens: int, glue: str, write: Callable[[], str]) -> str:
        room = round(tokens * self.characters_per_token) - len(pieces[0])
        while room > 0:
            pieces.append(write())
            room -= len(pieces[-1]) + len(glue)
        return glue.join(pieces)


def _sentence(random: Random) -> str:
    a, b, c = random.sample(_NOUNS, 3)
    verb, other = random.sample(_VERBS, 2)
    return f"{verb.capitalize()} the {a} before you {other} its {b}, unless the {c} says no."


def _code_line(random: Random, number: int) -> str:
    a, b, c = random.sample(_NOUNS, 3)
    verb = random.choice(_VERBS)
    return f"{number:>4}  {a}_{b} = {verb}_{c}({a}, {random.randrange(1000)})"
