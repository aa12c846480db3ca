"""GLM's way to write calls, in keys and values, and of those that took after it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlx_backend.output.argument_types import Types
from mlx_backend.output.call_format import Spelling
from mlx_backend.output.chains import SPACE, Until, Word
from mlx_backend.output.tagged import TaggedFormat, Tags
from mlx_backend.output.tagged_grammar import MAY_BREAK, Writing
from mlx_backend.output.tape import MARK


class GlmFormat(TaggedFormat):
    """GLM 4.5 to 4.7, Laguna, Ling 3:
    `<tool_call>f⏎<arg_key>k</arg_key>⏎<arg_value>v</arg_value>⏎</tool_call>`."""

    name = "glm"
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
