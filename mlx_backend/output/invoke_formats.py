"""The families that write calls as invocations with named parameters, several in one block."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import ClassVar

from mlx_backend.messages import CallableTool
from mlx_backend.output.argument_types import EVERY, STRING, Types
from mlx_backend.output.call_format import Calls, NotACall, Spelling
from mlx_backend.output.chains import Chain, Until, Word, read_one_of
from mlx_backend.output.lark import choice, tape_text
from mlx_backend.output.tagged import TaggedFormat, Tags, attribute
from mlx_backend.output.tagged_grammar import Writing
from mlx_backend.output.tape import MARK, OutputEnded, Reading, Tape


class MiniMaxFormat(TaggedFormat):
    """MiniMax M2: `<minimax:tool_call>⏎<invoke name="f">⏎<parameter name="k">v</parameter>⏎
    </invoke>⏎</minimax:tool_call>`, several invocations in one block."""

    name = "minimax"
    marks: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>", "</minimax:tool_call>")
    opening_marks: ClassVar[tuple[str, ...]] = ("<minimax:tool_call>",)
    _said_of_values: ClassVar[str] = ""

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<minimax:tool_call>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        self.openings = (spelled("<minimax:tool_call>"),)
        return _invocations("", spelled("</minimax:tool_call>"))

    def name_of(self, attributes: str) -> str:
        return attribute(attributes, "name")

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        return attribute(attributes[0], "name"), None

    def writing(self) -> Writing:
        call, argument = (chain[0] for chain in (self.tags.call, self.tags.argument))
        return Writing(
            self.spelled.tokens,
            block=f"{self.openings[0]}\n",
            call=f'{call} name="{{name}}">\n',
            argument=f'{argument} name="{{key}}"{self._said_of_values}>',
            value_end=f"{self.tags.value_end}\n",
            call_end=f"{self.tags.call_end}\n",
            block_end=self.tags.block_end,
        )


def _invocations(prefix: str, block_end: str) -> Tags:
    return Tags(
        call=(f"<{prefix}invoke", Until(">")),
        argument=(f"<{prefix}parameter", Until(">")),
        value_end=f"</{prefix}parameter>",
        call_end=f"</{prefix}invoke>",
        block_end=block_end,
    )


class MuseSparkFormat(MiniMaxFormat):
    """Muse Spark: `<atem:function_calls>⏎<atem:invoke name="f">⏎<atem:parameter name="k">v…`.

    Every message says whom it is for: ` to=user<|message|>…<|eom|><|start|>assistant to=f…`; what
    it is to itself is thought. The prompt ends within the first header.
    """

    name = "muse-spark"
    marks = (
        "<atem:function_calls>", "</atem:function_calls>",
        "<|start|>", "<|message|>", "<|eom|>", "<|eot|>",
    )  # fmt: skip
    opening_marks = ("<atem:function_calls>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<atem:function_calls>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        opening, closing, start, message, end, turn_end = map(spelled, self.marks)
        headers = (" to=", f"{start}assistant to=")
        self.openings = (opening, *headers)
        self.think_tags = tuple((f"{header}self{message}", end) for header in headers)
        self.silent_marks = (
            f"{start}assistant{message}", end, turn_end,
            *(f"{header}{name}{message}" for header in headers for name in ("user", "commentary")),
        )  # fmt: skip
        self._headers: tuple[Chain, ...] = tuple(
            (header, Word("<" + MARK), message) for header in headers
        )
        return _invocations("atem:", closing)

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        """Calls stand behind a header, which behind a thought begins a message of its own."""
        _, _, start, message, *_ = map(self.spelled, self.marks)
        begun = tape_text(f"{start}assistant", self.spelled.tokens)
        headers = (tape_text(f" to={tool.name}{message}", self.spelled.tokens) for tool in tools)
        calls = self.writing().grammar(tools, may_repeat).replace("start:", "calls:", 1)
        return f"start: ({begun})? ({choice(headers)}) calls\n{calls}"

    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        if tape.text.startswith(self.openings[0], tape.at):
            yield from super().read(tape, calls)
            return
        try:
            header = yield from read_one_of(tape, self._headers)
        except OutputEnded:
            header = None
        if header is None:
            raise NotACall
        tape.at = header.end


class DsmlFormat(MiniMaxFormat):
    """DeepSeek V3.2: `<｜DSML｜function_calls>⏎<｜DSML｜invoke name="f">⏎
    <｜DSML｜parameter name="k" string="true">v</｜DSML｜parameter>…`."""

    name = "dsml"
    marks = ("｜DSML｜",)
    opening_marks = ()
    _block: ClassVar[str] = "function_calls"
    _said_of_values = ' string="{is_string}"'

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "｜DSML｜" in template or "｜DSML｜" in added_tokens

    def tags_for(self, spelled: Spelling) -> Tags:
        prefix = spelled("｜DSML｜")
        self.openings = (f"<{prefix}{self._block}>",)
        return _invocations(prefix, f"</{prefix}{self._block}>")

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        said = attribute(attributes[0], "string")
        types = {"true": STRING, "false": EVERY - STRING}.get(said)
        return attribute(attributes[0], "name"), types


class Dsml4Format(DsmlFormat):
    """DeepSeek V4: as V3.2, with another name for the block."""

    name = "dsml-4"
    _block = "tool_calls"

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "｜DSML｜" in template and "tool_calls>" in template
