"""Answers as ids, and what was read of them, for tests and benchmarks of the output."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlx_backend.messages import (
    AnswerForm,
    CallableTool,
    CallArguments,
    CallFinished,
    CallStarted,
    Malformed,
    Piece,
    StopFound,
    TextPiece,
    ThoughtPiece,
)
from mlx_backend.output.answer_output import AnswerOutput
from mlx_backend.output.call_format import Spelling
from mlx_backend.output.formats import CALL_FORMATS, AnswerFormat, answer_format, harmony_format
from mlx_backend.output.harmony import Harmony
from mlx_backend.output.marked import MarkingDecoder
from mlx_backend.output.plain import ByteDecoder
from tests.mlx_backend.written_calls import WRITERS, Call

NAMES = (*(kind.name for kind in CALL_FORMATS), Harmony.name)


def written(name: str, *calls: Call) -> str:
    """Calls as the family of that name writes them, one behind the other, wherever text stands."""
    match name:
        case "harmony":
            return "<|start|>assistant".join(map(_harmony, calls))
        case "llama":
            return "<|python_tag|>" + WRITERS[name](calls)
    return WRITERS[name](calls)


def _harmony(call: Call) -> str:
    arguments = json.dumps(call[1], ensure_ascii=False)
    header = f"<|channel|>commentary to=functions.{call[0]} <|constrain|>json"
    return f"{header}<|message|>{arguments}<|call|>"


def made(name: str, *, has_marks: bool) -> AnswerFormat:
    """A format by its name, for a tokenizer that has all of its marks as tokens, or none."""
    if name == "harmony":
        return harmony_format(Harmony.marks if has_marks else ())
    kind = next(kind for kind in CALL_FORMATS if kind.name == name)
    tokens = [*kind.marks, "<think>", "</think>"] if has_marks else []
    calls = kind(Spelling(frozenset(tokens).intersection(kind.marks)))
    return answer_format(calls, added_tokens=tokens)


@dataclass(frozen=True)
class Sampled:
    """An answer as ids: bytes in groups, and marks as tokens of their own."""

    ids: list[int]
    bytes_of: Mapping[int, bytes]
    marks: Mapping[int, str]

    def decoder(self) -> MarkingDecoder:
        return MarkingDecoder(ByteDecoder(lambda id: self.bytes_of.get(id, b"")), self.marks)


def sampled(text: str, marks: Collection[str], sizes: Sequence[int] = (1,)) -> Sampled:
    """`text` in tokens of these many bytes in turn; what it spells of `marks` as tokens."""
    pattern = "|".join(re.escape(mark) for mark in sorted(marks, key=len, reverse=True))
    parts = re.split(f"({pattern})", text) if pattern else [text]
    tokens: list[bytes | str] = []
    for place, part in enumerate(parts):
        if place % 2:
            tokens.append(part)
        else:
            tokens += _cut(part.encode(), sizes)
    ids = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    return Sampled(
        [ids[token] for token in tokens],
        {id: token for token, id in ids.items() if isinstance(token, bytes)},
        {id: token for token, id in ids.items() if isinstance(token, str)},
    )


def _cut(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    cut, at = [], 0
    while at < len(data):
        size = max(1, sizes[len(cut) % len(sizes)]) if sizes else len(data)
        cut.append(data[at : at + size])
        at += size
    return cut


def read(
    format: AnswerFormat,
    text: str,
    form: AnswerForm,
    *,
    sizes: Sequence[int] = (1,),
    is_cut: bool = False,
) -> list[Piece]:
    """The pieces of an answer that says `text`, neighbours of a kind joined."""
    answer = sampled(text, format.marks, sizes)
    output = AnswerOutput(answer.decoder(), format.reader, form)
    pieces = [piece for token in answer.ids for piece in output.push([token])]
    return joined([*pieces, *output.finish(is_cut=is_cut)])


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    whole: list[Piece] = []
    for piece in pieces:
        match whole[-1] if whole else None, piece:
            case TextPiece(before), TextPiece(text):
                whole[-1] = TextPiece(before + text)
            case ThoughtPiece(before), ThoughtPiece(text):
                whole[-1] = ThoughtPiece(before + text)
            case CallArguments(index, before), CallArguments(_, text):
                whole[-1] = CallArguments(index, before + text)
            case _:
                whole.append(piece)
    return whole


@dataclass(frozen=True)
class Told:
    """An answer's pieces, sorted."""

    text: str
    thought: str
    calls: list[tuple[str, Any]]
    begun: list[str]
    warnings: list[str]
    stop: str | None


def told(pieces: Sequence[Piece]) -> Told:
    """What pieces say: `calls` are the whole ones with their arguments, `begun` all the others."""
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    finished: set[int] = set()
    for piece in pieces:
        match piece:
            case CallStarted(index, name):
                assert index == len(names)
                names[index] = name
            case CallArguments(index, text):
                assert index == len(names) - 1
                assert index not in finished
                arguments[index] = arguments.get(index, "") + text
            case CallFinished(index):
                finished.add(index)
    return Told(
        "".join(piece.text for piece in pieces if isinstance(piece, TextPiece)),
        "".join(piece.text for piece in pieces if isinstance(piece, ThoughtPiece)),
        [(names[i], json.loads(arguments[i])) for i in names if i in finished],
        [names[i] for i in names if i not in finished],
        [piece.why for piece in pieces if isinstance(piece, Malformed)],
        next((piece.stop for piece in pieces if isinstance(piece, StopFound)), None),
    )


WRITE_FILE = CallableTool(
    "write_file",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
)
LIST_FILES = CallableTool("list_files", {"type": "object", "properties": {}})
TOOLS = (WRITE_FILE, LIST_FILES)
