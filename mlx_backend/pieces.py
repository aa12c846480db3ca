"""Rendered prompts to ids, piece by piece, so that a turn costs its new text.

Control tokens always cut the text, so what lies between two of them is encoded for itself and
kept in a memo: the next turn of a conversation finds all but its own pieces there. Where a
tokenizer's rules make a piece depend on its place (a blank put in front of the text's first
word), a guard stands before it while it is encoded. Whether pieces give what the whole gives is
tried when the model is loaded; where not, whole stretches of text are encoded.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np

from mlx_backend.control import BREAK, ControlTokens, as_written
from mlx_backend.encoded import NOTHING, Encoded
from mlx_backend.interface import ShouldStop, never
from mlx_backend.length import LengthCheck, stop_if
from mlx_backend.memo import Memo
from mlx_backend.messages import TokenIds, token_ids
from mlx_backend.splices import Splice

Part: TypeAlias = str | Splice

_MEMO_BYTES = 32 << 20
_PROBES = ("Hello", " Hello", "\nHello there\n", "x", "a  b", "é", " ")
_MOST_JOINTS = 32
_CHARACTERS_AT_ONCE = 1 << 16  # the tokenizer is asked for about so many, and cannot be stopped


@dataclass(frozen=True, slots=True)
class Guard:
    """Text encoded before a piece and the ids it makes, which are then taken off."""

    text: str = ""
    ids: tuple[int, ...] = ()


class PieceEncoder:
    """Encodes what a template rendered. `tokenizer` is a `tokenizers.Tokenizer`. Thread-safe.

    What cannot fit `context_size` is refused with PromptTooLong before it is cut or encoded.
    """

    def __init__(
        self,
        tokenizer: Any,
        control: ControlTokens,
        bytes_of: Any,
        context_size: int | None = None,
    ) -> None:
        self._length = LengthCheck(tokenizer, context_size)
        self._tokenizer = tokenizer
        self._control = control
        self._bytes_of = bytes_of
        self._cut_ids = {token.text: token_ids([token.id]) for token in control.tokens}
        self._control_ids = np.array([token.id for token in control.tokens], dtype=np.int32)
        self._memo: Memo[tuple[str, str], TokenIds] = Memo(_MEMO_BYTES, _entry_bytes)
        self._after_token = self._choose_guard_after_token()
        self._after_break = self._choose_guard_after_break()
        self.by_pieces = all(self._agrees_on(probe) for probe in self._probe_texts())

    def encode(
        self, rendered: str, splices: Sequence[Splice] = (), should_stop: ShouldStop = never
    ) -> TokenIds:
        """The ids of a rendered prompt, without any token added in front or behind."""
        self._check_length(rendered, 0, 0, splices, should_stop)
        parts = self._split(rendered, 0, splices)
        if not self.by_pieces:
            parts = _rejoined(parts)
        return _joined(self._encode_parts(parts, Guard(), should_stop))

    def content(self, text: str, should_stop: ShouldStop = never, *, goes_on: bool) -> TokenIds:
        """The ids of content, in which control tokens stay text; `goes_on`: within a line."""
        self._length.check(text, 0, should_stop)
        parts = self._control.split(self._control.as_content(text))
        guard = self._after_break if goes_on else Guard()
        return _joined(self._encode_parts(parts, guard, should_stop))

    def plain(self, text: str, should_stop: ShouldStop = never) -> TokenIds:
        """The ids of text without a template, in which control tokens are what they spell."""
        self._length.check(text, 0, should_stop)
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return token_ids(encoding.ids)

    def continue_from(
        self,
        before: Encoded,
        rendered: str,
        splices: Sequence[Splice] = (),
        should_stop: ShouldStop = never,
    ) -> Encoded:
        """Encode `rendered`, with the ids of `splices` in their places; what it shares with
        `before` is taken from there."""
        splices = tuple(splices)
        if not self.by_pieces:
            ids = self.encode(rendered, splices, should_stop)
            return Encoded(rendered, ids, splices=splices)
        characters, count = before.shared_with(rendered, splices)
        self._check_length(rendered, characters, count, splices, should_stop)
        parts = self._split(rendered, characters, splices)
        guard = self._after_token if characters else Guard()
        found = self._encode_parts(parts, guard, should_stop)
        ids = _joined([before.ids[:count], *found])
        joints = [joint for joint in before.joints if joint[0] <= characters]
        joints += self._joints(parts, found, len(rendered), len(ids))
        bounds = zip(
            accumulate(map(len, parts), initial=characters),
            accumulate(map(len, found), initial=count),
            strict=True,
        )
        return Encoded(rendered, ids, tuple(joints[-_MOST_JOINTS:]), tuple(bounds), splices)

    def _check_length(
        self,
        rendered: str,
        start: int,
        known: int,
        splices: Sequence[Splice],
        should_stop: ShouldStop,
    ) -> None:
        """Refuse what is too long with `known` tokens before `start` and those of the splices."""
        left: list[str] = []
        for splice in splices:
            if splice.start >= start:
                left.append(rendered[start : splice.start])
                start, known = splice.end, known + len(splice.ids)
        self._length.check("".join([*left, rendered[start:]]), known, should_stop)

    def _split(self, rendered: str, start: int, splices: Sequence[Splice]) -> list[Part]:
        """[text, cut, text, …, text] from `start` on; a splice is a cut as well."""
        parts: list[Part] = []
        for splice in splices:
            if splice.start >= start:
                parts += [*self._control.split(rendered[start : splice.start]), splice]
                start = splice.end
        return [*parts, *self._control.split(rendered[start:])]

    def _joints(
        self, parts: Sequence[Part], found: Sequence[TokenIds], characters: int, count: int
    ) -> list[tuple[int, int]]:
        """The last places behind a control token, counted from the end of the prompt."""
        joints: list[tuple[int, int]] = []
        for place in range(len(parts) - 1, 0, -2):
            characters -= len(parts[place])
            count -= len(found[place])
            cut = parts[place - 1]
            if isinstance(cut, str) and self._control.ends_cleanly(cut):
                joints.append((characters, count))
                if len(joints) == _MOST_JOINTS:
                    break
            characters -= len(parts[place - 1])
            count -= len(found[place - 1])
        return joints[::-1]

    def _encode_parts(
        self, parts: Sequence[Part], guard: Guard, should_stop: ShouldStop = never
    ) -> list[TokenIds]:
        """The ids of each part; `guard` is the first one's."""
        wanted = self._wanted(parts, guard)
        keys = (key for key in wanted if isinstance(key, tuple))
        encoded = self._encode_all(keys, should_stop)
        return [encoded[key] if isinstance(key, tuple) else key for key in wanted]

    def check(self, rendered: str) -> None:
        """Encode by pieces no longer if they do not give what the whole gives for `rendered`."""
        self.by_pieces = self.by_pieces and self._agrees_on(rendered)

    def _wanted(self, parts: Sequence[Part], guard: Guard) -> list[tuple[str, str] | TokenIds]:
        """For each part the key of its piece, or its ids where it is no text."""
        wanted: list[tuple[str, str] | TokenIds] = []
        for place, part in enumerate(parts):
            if not isinstance(part, str):
                wanted.append(part.ids)
                guard = self._after_break
            elif place % 2 == 0:
                text = as_written(part)
                wanted.append((guard.text, text) if text else NOTHING)
            elif (ids := self._cut_ids.get(part)) is not None:
                wanted.append(ids)
                guard = self._after_token
            elif part == BREAK:
                wanted.append(NOTHING)
                guard = self._after_break
            else:
                wanted.append(token_ids([self._control.id_of(part)]))
                guard = self._after_token
        return wanted

    def _encode_all(
        self, keys: Iterable[tuple[str, str]], should_stop: ShouldStop
    ) -> dict[tuple[str, str], TokenIds]:
        found = {key: self._memo.get(key) for key in keys}
        missing = [key for key, ids in found.items() if ids is None]
        for group in _groups(missing):
            stop_if(should_stop)
            texts = [guard + text for guard, text in group]
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for key, encoding in zip(group, encodings, strict=True):
                found[key] = ids = self._checked(key, encoding.ids)
                self._memo.put(key, ids)
        return {key: ids for key, ids in found.items() if ids is not None}

    def _checked(self, key: tuple[str, str], encoded: Sequence[int]) -> TokenIds:
        """The piece's own ids: without its guard's, and without any control token."""
        guard, text = key
        ids = token_ids(encoded)
        if guard:
            ids = self._without_guard(guard, text, ids)
        if np.isin(ids, self._control_ids).any() and not self._control.is_spelled_in(text):
            # The normaliser made a control token of other characters: encode it in two halves.
            if len(text) == 1:
                return NOTHING
            half = len(text) // 2
            ids = np.concatenate([self._one((guard, text[:half])), self._one(("", text[half:]))])
        return ids

    def _one(self, key: tuple[str, str]) -> TokenIds:
        encoded = self._tokenizer.encode(key[0] + key[1], add_special_tokens=False).ids
        return self._checked(key, encoded)

    def _without_guard(self, guard: str, text: str, ids: TokenIds) -> TokenIds:
        known = self._after_token if guard == self._after_token.text else self._after_break
        count = len(known.ids)
        if tuple(ids[:count].tolist()) == known.ids:
            return ids[count:]
        return self._one(("", text))

    def _choose_guard_after_token(self) -> Guard:
        """Nothing, or a control token where a text's first word is not encoded like others."""
        plain = [token for token in self._control.tokens if not token.eats_right]
        if not plain:
            return Guard()
        guard = Guard(plain[0].text, (plain[0].id,))
        for probe in _PROBES:
            alone, behind = self._ids_of(probe), self._ids_of(guard.text + probe)
            if behind[:1] == list(guard.ids) and behind[1:] != alone:
                return guard
        return Guard()

    def _choose_guard_after_break(self) -> Guard:
        """What keeps a blank from being put before a piece in the middle of a word."""
        newline = Guard("\n", tuple(self._ids_of("\n")))
        for guard in (Guard(), self._after_token, newline):
            self._after_break = guard
            ids = self._ids_of(guard.text + "|x")
            if tuple(ids[: len(guard.ids)]) != guard.ids:
                continue
            if b"".join(map(self._bytes_of, ids[len(guard.ids) :])) == b"|x":
                return guard
        return Guard()

    def _probe_texts(self) -> list[str]:
        """Each control token among text with blanks about it, first, within and last."""
        texts = [f"a{token.text}b {token.text} c\n{token.text}\n" for token in self._control.tokens]
        texts += [f"{token.text}{probe}" for token in self._control.tokens[:4] for probe in _PROBES]
        return texts

    def _agrees_on(self, rendered: str) -> bool:
        by_pieces = _joined(self._encode_parts(self._control.split(rendered), Guard()))
        return bool(by_pieces.tolist() == self._ids_of(rendered))

    def _ids_of(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _joined(found: Sequence[TokenIds]) -> TokenIds:
    return np.concatenate(found) if found else NOTHING


def _rejoined(parts: Sequence[Part]) -> list[Part]:
    """The parts with cuts at BREAK and at splices only."""
    rejoined: list[Part] = []
    stretch = ""
    for place, part in enumerate(parts):
        if not isinstance(part, str) or (place % 2 and part == BREAK):
            rejoined += [stretch, part]
            stretch = ""
        else:
            stretch += part
    return [*rejoined, stretch]


def _groups(keys: Sequence[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The keys of pieces in order, as many at once as have a bounded length together."""
    group: list[tuple[str, str]] = []
    characters = 0
    for key in keys:
        if group and characters + len(key[1]) > _CHARACTERS_AT_ONCE:
            yield group
            group, characters = [], 0
        group.append(key)
        characters += len(key[1])
    if group:
        yield group


def _entry_bytes(key: tuple[str, str], ids: TokenIds) -> int:
    return sys.getsizeof(key[1]) + ids.nbytes + 200
