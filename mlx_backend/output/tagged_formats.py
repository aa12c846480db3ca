"""The families that write their calls as tags: what their tags look like."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import ClassVar

from mlx_backend.output.argument_types import EVERY, STRING, Types
from mlx_backend.output.argument_writer import ArgumentWriter
from mlx_backend.output.call_format import Calls, Spelling
from mlx_backend.output.chains import SPACE, Chain, Until, Word, read_one_of, take_end
from mlx_backend.output.json_calls import read_call
from mlx_backend.output.tagged import TaggedFormat, Tags
from mlx_backend.output.tagged_grammar import MAY_BREAK, Writing
from mlx_backend.output.tape import MARK, OutputEnded, Reading, Search, Tape

_ATTRIBUTE = re.compile(r"""([\w.-]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""")


def attribute(attributes: str, name: str) -> str:
    """What a tag says of `name`; "" if nothing."""
    for found in _ATTRIBUTE.finditer(attributes):
        if found[1] == name:
            return found[2] or found[3] or found[4] or ""
    return ""


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


class GlmFormat(TaggedFormat):
    """GLM 4.5 to 4.7, Laguna, Ling 3:
    `<tool_call>f⏎<arg_key>k</arg_key>⏎<arg_value>v</arg_value>⏎</tool_call>`."""

    name = "glm"
    prefix: ClassVar[str] = ""
    marks = (
        "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    )  # fmt: skip
    opening_marks = ("<tool_call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<arg_key>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        opening, closing, key, key_end, value, value_end = map(spelled, self.marks)
        self.openings = (opening,)
        return Tags(
            call=(Word("<" + MARK),),
            argument=(key, Until(key_end), SPACE, value),
            value_end=value_end,
            block_end=closing,
        )

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        return attributes[0].strip(), None

    def writing(self) -> Writing:
        opening, closing, key, key_end, value, value_end = map(self.spelled, self.marks)
        return Writing(
            self.spelled.tokens,
            call=f"{opening}{{name}}{MAY_BREAK}",
            argument=f"{key}{{key}}{key_end}{MAY_BREAK}{value}",
            value_end=f"{value_end}{MAY_BREAK}",
            call_end=f"{closing}{MAY_BREAK}",
        )


class LongcatFormat(GlmFormat):
    """LongCat: as GLM, in tags of its own."""

    name = "longcat"
    marks = (
        "<longcat_tool_call>", "</longcat_tool_call>", "<longcat_arg_key>", "</longcat_arg_key>",
        "<longcat_arg_value>", "</longcat_arg_value>",
    )  # fmt: skip
    opening_marks = ("<longcat_tool_call>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<longcat_tool_call>" in template


class HunyuanFormat(TaggedFormat):
    """Hunyuan 3: `<tool_calls:…>⏎<tool_call:…>f<tool_sep:…>⏎`, keys and values as GLM has them."""

    name = "hunyuan"
    marks = tuple(
        f"<{tag}:opensource>"
        for tag in (
            "tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep",
            "arg_key", "/arg_key", "arg_value", "/arg_value", "think", "/think",
        )
    )  # fmt: skip
    opening_marks = ("<tool_calls:opensource>", "<tool_call:opensource>")

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<tool_calls{}>" in template or "<tool_calls:opensource>" in added_tokens

    def tags_for(self, spelled: Spelling) -> Tags:
        block, block_end, call, call_end, after, key, key_end, value, value_end, *think = map(
            spelled, self.marks
        )
        self.openings = (block,)
        self.think_tags = ((think[0], think[1]),)
        return Tags(
            call=(call, Until(after)),
            argument=(key, Until(key_end), SPACE, value),
            value_end=value_end,
            call_end=call_end,
            block_end=block_end,
        )

    def writing(self) -> Writing:
        block, block_end, call, call_end, after, key, key_end, value, value_end, *_ = map(
            self.spelled, self.marks
        )
        return Writing(
            self.spelled.tokens,
            block=f"{block}\n",
            call=f"{call}{{name}}{after}\n",
            argument=f"{key}{{key}}{key_end}\n{value}",
            value_end=f"{value_end}\n",
            call_end=f"{call_end}\n",
            block_end=block_end,
        )


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
    """Muse Spark: `<atem:function_calls>⏎<atem:invoke name="f">⏎<atem:parameter name="k">v…`."""

    name = "muse-spark"
    marks = ("<atem:function_calls>", "</atem:function_calls>")
    opening_marks = ("<atem:function_calls>",)

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return "<atem:function_calls>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        self.openings = (spelled("<atem:function_calls>"),)
        return _invocations("atem:", spelled("</atem:function_calls>"))


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


class KimiK3Format(TaggedFormat):
    """Kimi K3: `<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|><|open|>argument key="k"
    type="string"<|sep|>v<|close|>argument<|sep|>…`, or all arguments as JSON in a `json` element.
    """

    name = "kimi-k3"
    marks = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")

    @classmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        return set(cls.marks) <= set(added_tokens) or "<|open|>" in template

    def tags_for(self, spelled: Spelling) -> Tags:
        opens, closes, sep, end_of_message = map(spelled, self.marks)
        self.openings = (f"{opens}tools{sep}",)
        self.think_tags = ((f"{opens}think{sep}", f"{closes}think{sep}"),)
        response, message = (f"{closes}{name}{sep}" for name in ("response", "message"))
        self.silent_marks = (f"{opens}response{sep}", response, message, end_of_message)
        self._json: Chain = (SPACE, f"{opens}json", Until(sep))
        self._json_end = f"{closes}json{sep}"
        return Tags(
            call=(f"{opens}call", Until(sep)),
            argument=(f"{opens}argument", Until(sep)),
            value_end=f"{closes}argument{sep}",
            call_end=f"{closes}call{sep}",
            block_end=f"{closes}tools{sep}",
        )

    def writing(self) -> Writing:
        opens, closes, sep, _ = map(self.spelled, self.marks)
        return Writing(
            self.spelled.tokens,
            block=f"{opens}tools{sep}",
            call=f'{opens}call tool="{{name}}" index="1"{sep}',
            argument=f'{opens}argument key="{{key}}" type="{{type}}"{sep}',
            value_end=f"{closes}argument{sep}",
            call_end=f"{closes}call{sep}",
            block_end=f"{closes}tools{sep}",
        )

    def name_of(self, attributes: str) -> str:
        return _unescaped(attribute(attributes, "tool"))

    def key_of(self, attributes: Sequence[str]) -> tuple[str, Types | None]:
        said = frozenset({attribute(attributes[0], "type")}) & EVERY
        return _unescaped(attribute(attributes[0], "key")), said or None

    def _read_arguments(self, name: str, tape: Tape, calls: Calls) -> Reading[None]:
        found = yield from read_one_of(tape, (self._json,))
        if found is None:
            yield from super()._read_arguments(name, tape, calls)
            return
        tape.at = found.end
        yield from read_call(tape, calls, name, end=self._json_end)
        yield from take_end(tape, (SPACE, self._json_end))
        yield from take_end(tape, (SPACE, self.tags.call_end))


def _unescaped(text: str) -> str:
    return text.replace("&quot;", '"').replace("&amp;", "&")


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
