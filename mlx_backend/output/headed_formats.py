"""The families that name the tool in a head of marks, and write its arguments as JSON behind it."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import ClassVar

from mlx_backend.messages import CallableTool
from mlx_backend.output.call_format import CallFormat, Calls, NotACall, Spelling
from mlx_backend.output.chains import SPACE, Chain, Followed, Until, read_one_of, take_end
from mlx_backend.output.json_calls import read_call
from mlx_backend.output.lark import choice, json_value, tape_text
from mlx_backend.output.tape import Reading, Tape

_NUMBER = "\r"
_KIMI_NAME = re.compile(r"\s*(?:functions\.)?(.*?)(?::\d+)?\s*", re.DOTALL)


class HeadedFormat(CallFormat):
    """Blocks of calls that each are a head, a JSON object and a closing mark."""

    heads: tuple[Chain, ...]
    """Ways to write what precedes the arguments: the tool's name is in the last of its names."""

    call_end: str
    block_end: str = ""
    behind_arguments: Chain = ()
    """What may stand between the arguments and `call_end`."""

    def name_of(self, found: Followed) -> str:
        return found.names[-1].strip()

    @abstractmethod
    def block_opening(self) -> str:
        """The mark of a whole block. A call may open without it, by the mark of its head."""

    def written(self, name: str) -> Sequence[tuple[str, str]]:
        """The texts before and behind a call's arguments, as on the tape, in each known way, with
        `_NUMBER` for one. None: calls of this family cannot be enforced."""
        return ()

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        if not self.written(""):
            return None
        block, block_end = map(self._tape_text, (self.block_opening(), self.block_end))
        rules = [
            f"start: {block} {'call+' if may_repeat else 'call'} {block_end}",
            f"call: {choice(f'call_{i}' for i in range(len(tools)))}",
        ]
        for i, tool in enumerate(tools):
            ways = (map(self._tape_text, way) for way in self.written(tool.name))
            rules += [
                f"call_{i}: {choice(f'{head} arguments_{i} {end}' for head, end in ways)}",
                f"arguments_{i}: {json_value(tool.schema)}",
            ]
        return "\n".join(rules)

    def _tape_text(self, text: str) -> str:
        parts = (tape_text(part, self.spelled.tokens) for part in text.split(_NUMBER))
        return " /[0-9]{1,3}/ ".join(parts)

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        yield from tape.read_if(self.block_opening())
        while True:
            head = yield from read_one_of(tape, self.heads)
            if head is None:
                raise NotACall("What was begun as a call names no tool.")
            tape.at = head.end
            yield from self._read_arguments(self.name_of(head), tape, calls)
            for end in (self.behind_arguments, (SPACE, self.call_end)):
                yield from take_end(tape, end)
            tape.keep()  # what closed this call is no part of the next
            if (yield from self._is_block_over(tape)):
                return

    def _read_arguments(self, name: str, tape: Tape, calls: Calls) -> Reading[None]:
        yield from tape.skip_space()
        if (yield from tape.stands_here(self.call_end)):
            calls.start(name)
            calls.finish()
        else:
            yield from read_call(tape, calls, name, end=self.call_end)

    def _is_block_over(self, tape: Tape) -> Reading[bool]:
        if self.block_end and (yield from take_end(tape, (SPACE, self.block_end))):
            return True
        return (yield from read_one_of(tape, self.heads)) is None


class KimiFormat(HeadedFormat):
    """Kimi K2: `<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0
    <|tool_call_argument_begin|>{…}<|tool_call_end|><|tool_calls_section_end|>`."""

    name = "kimi"
    marks = (
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>",
    )  # fmt: skip
    opening_marks = ("<|tool_calls_section_begin|>", "<|tool_call_begin|>")

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        section, self.block_end, call, arguments, self.call_end = map(spelled, self.marks)
        self.openings = (section, call)
        self.heads = ((SPACE, call, SPACE, Until(arguments)),)
        self._head = f"{call}functions.{{name}}:{_NUMBER}{arguments}"

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<|tool_calls_section_begin|>" in template or cls.marks[0] in added_tokens

    def block_opening(self) -> str:
        return self.openings[0]

    def written(self, name: str) -> Sequence[tuple[str, str]]:
        return ((self._head.replace("{name}", name), self.call_end),)

    def name_of(self, found: Followed) -> str:
        match = _KIMI_NAME.fullmatch(found.names[-1])
        return match[1] if match is not None else ""


class DeepSeekFormat(HeadedFormat):
    """DeepSeek V3.1: `<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{…}
    <｜tool▁call▁end｜><｜tool▁calls▁end｜>`; R1 and V3 have `function<｜tool▁sep｜>f⏎` and the JSON
    in a fence there."""

    name = "deepseek"
    marks: ClassVar[tuple[str, ...]] = (
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
    )  # fmt: skip
    opening_marks = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    behind_arguments = (SPACE, "```")

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        block, self.block_end, call, between, self.call_end = map(spelled, self.marks)
        self.openings = (block, call)
        self.heads = (
            (SPACE, call, "function", between, Until("\n"), SPACE, "```json"),
            (SPACE, call, Until(between)),
        )
        self._call, self._between = call, between

    def written(self, name: str) -> Sequence[tuple[str, str]]:
        return (
            (f"{self._call}{name}{self._between}", self.call_end),
            (
                f"{self._call}function{self._between}{name}\n```json\n",
                f"\n```{self.call_end}",
            ),
        )

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return cls.marks[0] in template or cls.marks[0] in added_tokens

    def block_opening(self) -> str:
        return self.openings[0]


class SolarFormat(HeadedFormat):
    """Solar Open: `<|tool_calls|><|tool_call:begin|>id<|tool_call:name|>f<|tool_call:args|>{…}
    <|tool_call:end|>`."""

    name = "solar"
    marks = (
        "<|tool_calls|>", "<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>",
        "<|tool_call:end|>",
    )  # fmt: skip
    opening_marks = ("<|tool_calls|>", "<|tool_call:begin|>")

    def __init__(self, spelled: Spelling) -> None:
        super().__init__(spelled)
        block, call, before_name, before_arguments, self.call_end = map(spelled, self.marks)
        self.openings = (block, call)
        self.heads = ((SPACE, call, Until(before_name), Until(before_arguments)),)
        self._head = f"{call}{_NUMBER}{before_name}{{name}}{before_arguments}"

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<|tool_call:begin|>" in template

    def block_opening(self) -> str:
        return self.openings[0]

    def written(self, name: str) -> Sequence[tuple[str, str]]:
        return ((self._head.replace("{name}", name), self.call_end),)


HEADED_FORMATS: Sequence[type[HeadedFormat]] = (KimiFormat, DeepSeekFormat, SolarFormat)
