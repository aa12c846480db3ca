"""Kimi K3's elements: each tag is a name between tokens of its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlx_backend.output.argument_types import EVERY, Types
from mlx_backend.output.call_format import Calls, Spelling
from mlx_backend.output.chains import SPACE, Chain, Until, read_one_of, take_end
from mlx_backend.output.json_calls import read_call
from mlx_backend.output.tagged import TaggedFormat, Tags, attribute
from mlx_backend.output.tagged_grammar import Writing
from mlx_backend.output.tape import Reading, Tape


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
