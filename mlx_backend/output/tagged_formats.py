"""Formats written as tags: Qwen-Coder's, MiniCPM's, and the list of them all."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlx_backend.output.argument_types import Types
from mlx_backend.output.argument_writer import ArgumentWriter
from mlx_backend.output.call_format import Spelling
from mlx_backend.output.chains import SPACE, Chain, Until, read_one_of, take_end
from mlx_backend.output.glm_formats import GlmFormat, HunyuanFormat, LongcatFormat
from mlx_backend.output.invoke_formats import (
    Dsml4Format,
    DsmlFormat,
    MiniMaxFormat,
    MuseSparkFormat,
)
from mlx_backend.output.kimi_k3 import KimiK3Format
from mlx_backend.output.tagged import TaggedFormat, Tags, attribute
from mlx_backend.output.tagged_grammar import MAY_BREAK, Writing
from mlx_backend.output.tape import OutputEnded, Reading, Search, Tape


class QwenCoderFormat(TaggedFormat):
    """Qwen3-Coder, Qwen 3.5, Nemotron 3, Step 3.5:
    `<tool_call>⏎<function=f>⏎<parameter=k>⏎v⏎</parameter>⏎</function>⏎</tool_call>`.

    Now and then these models leave out the opening `<tool_call>`.
    """

    name = "qwen-coder"
    marks = ("<tool_call>", "</tool_call>")
    opening_marks = ("<tool_call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return all(tag in template for tag in ("<tool_call>", "<function=", "<parameter="))

    def tags_for(self, spelled: Spelling) -> Tags:
        self.openings = (spelled("<tool_call>"), "<function=")
        return Tags(
            call=("<function=", Until(">")),
            argument=("<parameter=", Until(">")),
            value_end="</parameter>",
            call_end="</function>",
            block_end=spelled("</tool_call>"),
            is_framed=True,
        )

    def writing(self) -> Writing:
        return Writing(
            self.spelled.tokens,
            call=f"{self.openings[0]}\n<function={{name}}>\n",
            argument="<parameter={key}>\n",
            value_end="\n</parameter>\n",
            call_end=f"</function>\n{self.tags.block_end}{MAY_BREAK}",
        )


class SeedFormat(TaggedFormat):
    """Seed-OSS: as Qwen-Coder, in tags of its own and with nothing around the values."""

    name = "seed"
    marks = ("<seed:tool_call>", "</seed:tool_call>")
    opening_marks = ("<seed:tool_call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<seed:tool_call>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        self.openings = (spelled("<seed:tool_call>"),)
        return Tags(
            call=("<function=", Until(">")),
            argument=("<parameter=", Until(">")),
            value_end="</parameter>",
            call_end="</function>",
            block_end=spelled("</seed:tool_call>"),
        )

    def writing(self) -> Writing:
        return Writing(
            self.spelled.tokens,
            call=f"{self.openings[0]}\n<function={{name}}>\n",
            argument="<parameter={key}>",
            value_end="</parameter>\n",
            call_end=f"</function>\n{self.tags.block_end}{MAY_BREAK}",
        )


class MiniCpmFormat(TaggedFormat):
    """MiniCPM 5: `<function name="f"><param name="k">v</param></function>`, with nothing around
    it; values that look like markup stand in CDATA."""

    name = "minicpm"
    marks = ("<function", "</function>", "<param", "</param>", "<![CDATA[", "]]>")
    opening_marks = ("<function",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return '<function name="' in template and '<param name="' in template

    def tags_for(self, spelled: Spelling) -> Tags:
        self.openings = (spelled("<function") + " name=",)
        self._literal, literal_end = spelled("<![CDATA["), spelled("]]>")
        self._literal_search = Search((literal_end,))
        tags = Tags(
            call=(Until(">"),),
            argument=(spelled("<param"), Until(">")),
            value_end=spelled("</param>"),
            call_end=spelled("</function>"),
        )
        behind: Chain = (literal_end, SPACE, tags.value_end, SPACE)
        self._literal_ends: tuple[Chain, ...] = (
            (*behind, *tags.argument),
            (*behind, tags.call_end),
        )
        return tags

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        return attribute(attributes[0], "name"), None

    def writing(self) -> Writing:
        opening, end, parameter, parameter_end, literal, literal_end = map(self.spelled, self.marks)
        return Writing(
            self.spelled.tokens,
            call=f'{opening} name="{{name}}">',
            argument=f'{parameter} name="{{key}}">',
            value_end=parameter_end,
            call_end=f"{end}{MAY_BREAK}",
            literal_opening=literal,
            literal_end=literal_end,
        )

    def _read_value(self, tape: Tape, writer: ArgumentWriter) -> Reading[None]:
        if not (yield from tape.read_if(self._literal)):
            yield from super()._read_value(tape, writer)
            return
        while True:
            text, mark = tape.take_before(self._literal_search)
            writer.push(text)
            if mark is None:
                yield from tape.more()
            elif (yield from self._ends_here(tape)):
                tape.take(len(mark))
                yield from take_end(tape, (SPACE, self.tags.value_end))
                return
            else:
                writer.push(tape.take(len(mark)))

    def _ends_here(self, tape: Tape) -> Reading[bool]:
        try:
            return (yield from read_one_of(tape, self._literal_ends)) is not None
        except OutputEnded:
            return True


TAGGED_FORMATS: tuple[type[TaggedFormat], ...] = (
    KimiK3Format,
    MiniMaxFormat,
    MuseSparkFormat,
    Dsml4Format,
    DsmlFormat,
    SeedFormat,
    LongcatFormat,
    HunyuanFormat,
    GlmFormat,
    QwenCoderFormat,
    MiniCpmFormat,
)
