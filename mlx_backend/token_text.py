"""What each token says: from a tokenizer to the `TextDecoder`s of its answers.

Byte-level and byte-fallback vocabularies (nearly all) are read token by token as bytes, which is
exact and costs the same for every token. Others are decoded by the tokenizer itself, a few
tokens at a time. Special tokens have no text, except the marks of thinking, which tell thought
from answer; added tokens that are not special have theirs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_backend.control import THINK_TAGS
from mlx_backend.output import ByteDecoder, TextDecoder

_REPLACEMENT = "\ufffd"
_WORD_START = "\u2581"  # SentencePiece writes a space so


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: printable Latin-1 is itself, others follow."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(256 + place): byte for place, byte in enumerate(others)})
    return alphabet


_BYTE_OF = _byte_level_alphabet()


def byte_level_bytes(token: str) -> bytes:
    """A byte-level vocabulary's token as the bytes it stands for."""
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode("utf-8", "replace")


def byte_fallback_bytes(token: str) -> bytes:
    """A SentencePiece token as bytes: `<0xE2>` is one byte, ▁ a space."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(_WORD_START, " ").encode("utf-8", "replace")


class SlidingDecoder:
    """Decodes by asking the tokenizer for a few tokens at a time.

    `decode` turns ids into text, special tokens left out. What a token says may depend on the one
    before it, so each group is decoded behind the group that was given out last, and what is new
    is what comes behind that group's text.
    """

    _most_held = 16  # ids without a whole character: after so many they are not going to have one

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._given: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        return "".join(self._push_one(token) for token in ids)

    def finish(self) -> str:
        text = self._new_text()
        self._held = []
        kept = text.rstrip(_REPLACEMENT)
        return kept + _REPLACEMENT if len(kept) < len(text) else text

    def _push_one(self, token: int) -> str:
        self._held.append(token)
        text = self._new_text()
        incomplete = text.endswith(_REPLACEMENT) and len(self._held) < self._most_held
        if not text or incomplete:
            return ""
        self._given, self._held = self._held, []
        return text

    def _new_text(self) -> str:
        return self._decode(self._given + self._held)[len(self._decode(self._given)) :]


class TokenText:
    """Makes decoders for one tokenizer (a `tokenizers.Tokenizer`). Shareable between threads."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added: dict[int, bytes] = {
            token: _text_of(entry).encode("utf-8", "replace") for token, entry in added.items()
        }
        decoder = tokenizer.decoder
        steps = _decoder_steps(decoder and json.loads(decoder.__getstate__()))
        kinds = [step.get("type") for step in steps]
        self._plain_bytes: Callable[[str], bytes] | None = None
        if kinds == ["ByteLevel"]:
            self._plain_bytes = byte_level_bytes
        elif "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            self._plain_bytes = byte_fallback_bytes
        self._drops_leading_space = any(
            step.get("type") == "Strip" and step.get("start") == 1 for step in steps
        )
        self._bytes: dict[int, bytes] = dict(self._added)

    def decoder(self) -> TextDecoder:
        """A decoder for one answer."""
        if self._plain_bytes is None:
            return SlidingDecoder(self._decode_known)
        return ByteDecoder(self.bytes_of, drop_leading_space=self._drops_leading_space)

    def bytes_of(self, token: int) -> bytes:
        """The bytes `token` stands for, b"" for special and unknown ids."""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._look_up(token)
        return known

    def _look_up(self, token: int) -> bytes:
        text = self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None
        if text is None or self._plain_bytes is None:
            return b""
        return self._plain_bytes(text)

    def _decode_known(self, ids: list[int]) -> str:
        known = [token for token in ids if 0 <= token < 2**32]
        return str(self._tokenizer.decode(known, skip_special_tokens=True))


def _text_of(entry: Any) -> str:
    """The text of an added token, "" for a special one."""
    hidden = entry.special and entry.content not in _SHOWN
    return "" if hidden else str(entry.content)


_SHOWN = frozenset(mark for pair in THINK_TAGS for mark in pair)


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The decoder of a tokenizer.json as a flat list of its steps."""
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [step for part in decoder["decoders"] for step in _decoder_steps(part)]
    return [decoder]
