"""Calls as each family writes them, and answers as ids, for tests and benchmarks of the output."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
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

Arguments = Mapping[str, Any]
Writer = Callable[[str, Arguments], str]


def plain(value: Any) -> str:
    """Text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tags(before: str, behind: str, argument: str, after: str) -> Writer:
    """`argument` has places for a key and a value."""

    def write(name: str, arguments: Arguments) -> str:
        written = "".join(argument.format(key, plain(arguments[key])) for key in arguments)
        return before + name + behind + written + after

    return write


def _headed(before: str, behind: str, after: str) -> Writer:
    return lambda name, arguments: before + name + behind + _json(arguments) + after


def _gemma(opening: str, quote: str, closing: str) -> Writer:
    def write(name: str, arguments: Arguments) -> str:
        members = ",".join(f"{key}:{value(arguments[key])}" for key in arguments)
        return f"{opening}call:{name}{{{members}}}{closing}"

    def value(item: Any) -> str:
        return f"{quote}{item}{quote}" if isinstance(item, str) else _json(item)

    return write


def _python(before: str, after: str) -> Writer:
    def write(name: str, arguments: Arguments) -> str:
        members = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        return f"{before}{name}({members}){after}"

    return write


def _dsml(block: str) -> Writer:
    def parameter(key: str, value: Any) -> str:
        is_string = "true" if isinstance(value, str) else "false"
        opening = f'<｜DSML｜parameter name="{key}" string="{is_string}">'
        return f"{opening}{plain(value)}</｜DSML｜parameter>\n"

    def write(name: str, arguments: Arguments) -> str:
        written = "".join(parameter(key, value) for key, value in arguments.items())
        invoke = f'<｜DSML｜invoke name="{name}">\n{written}</｜DSML｜invoke>'
        return f"<｜DSML｜{block}>\n{invoke}\n</｜DSML｜{block}>"

    return write


def _kimi_k3(name: str, arguments: Arguments) -> str:
    written = "".join(
        f'<|open|>argument key="{key}" type="{_type(value)}"<|sep|>{plain(value)}'
        "<|close|>argument<|sep|>"
        for key, value in arguments.items()
    )
    return (
        f'<|open|>tools<|sep|><|open|>call tool="{name}" index="1"<|sep|>{written}'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )


def _type(value: Any) -> str:
    kinds = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    return kinds.get(type(value), "null")


def _glm(prefix: str) -> Writer:
    return _tags(
        f"<{prefix}tool_call>",
        "\n",
        f"<{prefix}arg_key>{{}}</{prefix}arg_key>\n<{prefix}arg_value>{{}}</{prefix}arg_value>\n",
        f"</{prefix}tool_call>",
    )


def _minicpm(name: str, arguments: Arguments) -> str:
    written = "".join(
        f'<param name="{key}"><![CDATA[{plain(value)}]]></param>'
        for key, value in arguments.items()
    )
    return f'<function name="{name}">{written}</function>'


_HEADED_HARMONY = "<|channel|>commentary to=functions."
WRITERS: Mapping[str, Writer] = {
    "hermes": lambda name, arguments: (
        "<tool_call>\n" + _json({"name": name, "arguments": arguments}) + "\n</tool_call>"
    ),
    "llama": lambda name, arguments: (
        "<|python_tag|>" + _json({"name": name, "parameters": arguments})
    ),
    "mistral": _headed("[TOOL_CALLS]", "[ARGS]", ""),
    "harmony": _headed(_HEADED_HARMONY, " <|constrain|>json<|message|>", "<|call|>"),
    "pythonic": _python("<|tool_call_start|>[", "]<|tool_call_end|>"),
    "tool-code": _python("```tool_code\n", "\n```"),
    "kimi": _headed(
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.",
        ":0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "deepseek": _headed(
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    ),
    "solar": _headed(
        "<|tool_calls|><|tool_call:begin|>1<|tool_call:name|>",
        "<|tool_call:args|>",
        "<|tool_call:end|>",
    ),
    "gemma-4": _gemma("<|tool_call>", '<|"|>', "<tool_call|>"),
    "function-gemma": _gemma("<start_function_call>", "<escape>", "<end_function_call>"),
    "qwen-coder": _tags(
        "<tool_call>\n<function=",
        ">\n",
        "<parameter={}>\n{}\n</parameter>\n",
        "</function>\n</tool_call>",
    ),
    "seed": _tags(
        "<seed:tool_call>\n<function=",
        ">\n",
        "<parameter={}>{}</parameter>\n",
        "</function>\n</seed:tool_call>",
    ),
    "minimax": _tags(
        '<minimax:tool_call>\n<invoke name="',
        '">\n',
        '<parameter name="{}">{}</parameter>\n',
        "</invoke>\n</minimax:tool_call>",
    ),
    "muse-spark": _tags(
        '<atem:function_calls>\n<atem:invoke name="',
        '">\n',
        '<atem:parameter name="{}">{}</atem:parameter>\n',
        "</atem:invoke>\n</atem:function_calls>",
    ),
    "dsml": _dsml("function_calls"),
    "dsml-4": _dsml("tool_calls"),
    "glm": _glm(""),
    "longcat": _glm("longcat_"),
    "hunyuan": _tags(
        "<tool_calls:opensource>\n<tool_call:opensource>",
        "<tool_sep:opensource>\n",
        "<arg_key:opensource>{}</arg_key:opensource>\n"
        "<arg_value:opensource>{}</arg_value:opensource>\n",
        "</tool_call:opensource>\n</tool_calls:opensource>",
    ),
    "kimi-k3": _kimi_k3,
    "minicpm": _minicpm,
}


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
