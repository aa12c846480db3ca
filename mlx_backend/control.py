"""Control tokens: told apart by who wrote them, the template or the content.

A template's turn marks are tokens; the same characters in a file or a tool result are text. So
before rendering, each control token spelled in content gets a break inside (`as_content`); after
rendering, the text is cut at the breaks and at the control tokens that are still whole, which are
the template's own (`split`). Nothing is lost: the pieces between breaks are the content again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Unicode noncharacters. A content's own U+FDD0 is written as _LITERAL for the way through.
_ESCAPE = "\ufdd0"
_LITERAL = _ESCAPE + "\ufdd1"
_ASCII_ESCAPE, _ASCII_LITERAL, _ASCII_BREAK = r"\ufdd0", r"\ufdd0\ufdd1", r"\ufdd0\ufdd2"
BREAK = _ESCAPE + "\ufdd2"

THINK_TAGS = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<longcat_think>", "</longcat_think>"),
    ("<seed:think>", "</seed:think>"),
    ("[THINK]", "[/THINK]"),
    ("<|think:start|>", "<|think:end|>"),
)
"""How models write the begin and the end of their thinking."""

THOUGHT_OPENINGS = (
    *(opening for opening, _ in THINK_TAGS),
    "<|open|>think<|sep|>",
    "<think:opensource>",
    "<mm:think>",
    "<|START_THINKING|>",
    "<|channel>thought",
)
"""All that a prompt may end with if its answer begins in a thought, those of single families too.
Their templates put some together from pieces: none but a rendered prompt has them whole."""

_MARK_LIKE = re.compile(r"<\|.*\|>|[<\[]/?\|?(?:think|tool|reason|function)\w*\|?[>\]]", re.I)


@dataclass(frozen=True, slots=True)
class ControlToken:
    """An added token. `eats_left`, `eats_right`: it takes white space beside it with it."""

    text: str
    id: int
    eats_left: bool = False
    eats_right: bool = False


def find_control_tokens(added: Mapping[int, Any], template: str) -> tuple[ControlToken, ...]:
    """Which of a tokenizer's added tokens are control tokens.

    Special ones are; others if the template writes them or if they look like a mark. The rest
    (runs of blanks, HTML tags) are ordinary vocabulary, in content too.
    """
    return tuple(
        ControlToken(entry.content, token, entry.lstrip, entry.rstrip)
        for token, entry in added.items()
        if len(entry.content) > 1 and (entry.special or _is_mark(entry.content, template))
    )


def _is_mark(text: str, template: str) -> bool:
    if len(text) < 3 or text.isalnum() or text.isspace():
        return False
    return text in template or _MARK_LIKE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class Cut:
    """A control token in a rendered text, with the blanks that it eats."""

    start: int
    end: int
    id: int


class ControlTokens:
    """Finds and breaks the control tokens of one tokenizer. Immutable."""

    def __init__(self, tokens: Iterable[ControlToken]) -> None:
        self.tokens = tuple(sorted(tokens, key=lambda token: -len(token.text)))
        self._ids = {token.text: token.id for token in self.tokens}
        self._clean = frozenset(t.text for t in self.tokens if self._is_clean(t))
        self._spelled = re.compile(_any_of(re.escape(token.text) for token in self.tokens))
        self._everywhere = re.compile(f"(?={self._spelled.pattern})")
        marks = [_with_blanks(token) for token in self.tokens]
        self._cuts = re.compile(f"({_any_of([*marks, BREAK])})")

    def as_content(self, text: str) -> str:
        """`text` with a break in every control token it spells, for the way through a template."""
        if _ESCAPE in text:
            text = text.replace(_ESCAPE, _LITERAL)
        if not self.is_spelled_in(text):
            return text
        starts = [match.start() + 1 for match in self._everywhere.finditer(text)]
        return BREAK.join(text[a:b] for a, b in zip([0, *starts], [*starts, None], strict=True))

    def is_spelled_in(self, text: str) -> bool:
        return self._spelled.search(text) is not None

    def split(self, rendered: str) -> list[str]:
        """[text, cut, text, cut, …, text]; a cut is BREAK or a control token and its blanks.

        The parts joined are `rendered`; each text has to go through `as_written` still.
        """
        return self._cuts.split(rendered)

    def cuts(self, rendered: str, start: int = 0) -> Iterator[Cut]:
        """The template's control tokens from `start` on."""
        for match in self._cuts.finditer(rendered, start):
            token = self.id_of(match[0])
            if token is not None:
                yield Cut(match.start(), match.end(), token)

    def ends_cleanly(self, cut: str) -> bool:
        """Whether a cut ends here whatever follows it."""
        return cut in self._clean

    def _is_clean(self, token: ControlToken) -> bool:
        longer = (t.text for t in self.tokens if t is not token)
        return not token.eats_right and not any(t.startswith(token.text) for t in longer)

    def id_of(self, cut: str) -> int | None:
        """The token of a cut, None for BREAK."""
        found = self._ids.get(cut)
        return self._ids.get(cut.strip()) if found is None else found


def unescape_json(text: str) -> str:
    """Breaks as they were before JSON was written with all but ASCII escaped."""
    return text.replace(_ASCII_BREAK, BREAK).replace(_ASCII_LITERAL, _ASCII_ESCAPE)


def _any_of(patterns: Iterable[str]) -> str:
    return "|".join(patterns) or "(?!)"  # the latter never matches


def _with_blanks(token: ControlToken) -> str:
    left = r"\s*" if token.eats_left else ""
    right = r"\s*" if token.eats_right else ""
    return left + re.escape(token.text) + right


def as_written(part: str) -> str:
    """The text with the content's own U+FDD0 back, without escapes that a template cut in two."""
    if _ESCAPE not in part:
        return part
    return _ESCAPE.join(piece.replace(_ESCAPE, "") for piece in part.split(_LITERAL))


def content_of(rendered: str) -> str:
    """Rendered text as it is read, without what keeps content apart."""
    return as_written(rendered.replace(BREAK, ""))


def place_of(rendered: str, start: int, count: int) -> int:
    """The place in `rendered` behind `count` characters of its content from `start` on."""
    if _ESCAPE not in rendered[start : start + count + len(BREAK)]:
        return start + count
    for match in _UNITS.finditer(rendered, start):
        if count == 0:
            return match.start()
        count -= match[0] != BREAK
    return len(rendered)


_UNITS = re.compile(f"{BREAK}|{_LITERAL}|.", re.DOTALL)


def map_strings(value: Any, change: Any) -> Any:
    """`value` (JSON data) with `change` applied to every string in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {map_strings(key, change): map_strings(item, change) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [map_strings(item, change) for item in value]
    return value
