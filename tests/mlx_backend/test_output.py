"""Ids to text: whole characters, stop strings, and the same text however ids are grouped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from mlx_backend.messages import Piece, StopFound, TextPiece
from mlx_backend.output import ByteDecoder, StopStrings, TextDecoder, TextOutput
from mlx_backend.token_text import TokenText

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"  # one picture of five code points
TEXTS = [
    "",
    "plain",
    "naïve café",
    "日本語のテキスト",
    "🙂",
    f"a {FAMILY} b",
    "e\u0301",
    "\n\n\ttab",
]


def one_byte(token: int) -> bytes:
    return bytes([token]) if 0 <= token < 256 else b""


def byte_output(stop: Sequence[str] = ()) -> TextOutput:
    return TextOutput(ByteDecoder(one_byte), stop)


def text_of(output: TextOutput, groups: Sequence[Sequence[int]]) -> str:
    pieces = [piece for group in groups for piece in output.push(group)]
    return said([*pieces, *output.finish()])


def said(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))


def byte_level() -> TokenText:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_added(tokenizer)


def byte_fallback() -> TokenText:
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {"▁": 256, "▁a": 257, "plain": 258}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_added(tokenizer)


def asked_of_the_tokenizer() -> TokenText:
    """A tokenizer with a decoder that cannot be read token by token."""
    text = byte_level()._tokenizer
    text.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Replace("\r", "\n")])
    return TokenText(text)


def with_added(tokenizer: Tokenizer) -> TokenText:
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens([AddedToken("<think｜>", special=False, normalized=False)])
    return TokenText(tokenizer)


KINDS: list[Callable[[], TokenText]] = [byte_level, byte_fallback, asked_of_the_tokenizer]


def byte_ids(tokens: TokenText, data: bytes) -> list[int]:
    """The token of each byte."""
    by_byte = {tokens.bytes_of(i): i for i in range(256)}
    if len(by_byte) < 256:
        by_byte = {byte_level().bytes_of(i): i for i in range(256)}
    return [by_byte[bytes([byte])] for byte in data]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_characters_split_over_tokens_come_out_whole(
    kind: Callable[[], TokenText], text: str
) -> None:
    tokens = kind()
    output = TextOutput(tokens.decoder())
    deltas = [said(output.push([token])) for token in byte_ids(tokens, text.encode())]
    assert "\ufffd" not in "".join(deltas)
    assert "".join(deltas) + said(output.finish()) == text


@pytest.mark.parametrize("kind", KINDS)
def test_a_character_cut_short_by_the_end_shows_one_replacement(
    kind: Callable[[], TokenText],
) -> None:
    tokens = kind()
    output = TextOutput(tokens.decoder())
    assert text_of(output, [byte_ids(tokens, b"ok" + "🙂".encode()[:2])]) == "ok\ufffd"


@pytest.mark.parametrize("kind", KINDS)
def test_a_lone_bad_byte_does_not_take_its_neighbours_along(
    kind: Callable[[], TokenText],
) -> None:
    tokens = kind()
    groups = [[token] for token in byte_ids(tokens, b"a\xffb" + "é".encode())]
    assert text_of(TextOutput(tokens.decoder()), groups) == "a\ufffdbé"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_have_no_text_and_other_added_tokens_have_theirs(
    kind: Callable[[], TokenText],
) -> None:
    tokens = kind()
    special, added = (tokens._tokenizer.token_to_id(t) for t in ("<|end|>", "<think｜>"))
    a, b = byte_ids(tokens, b"ab")
    groups = [[a], [special], [added], [b]]
    assert text_of(TextOutput(tokens.decoder()), groups) == "a<think｜>b"


def test_marks_of_thinking_are_shown_even_where_they_are_special() -> None:
    tokenizer = byte_level()._tokenizer
    tokenizer.add_special_tokens([AddedToken("</think>", special=True)])
    tokens = TokenText(tokenizer)
    ids = [*byte_ids(tokens, b"a"), tokenizer.token_to_id("</think>"), *byte_ids(tokens, b"b")]
    assert text_of(TextOutput(tokens.decoder()), [ids]) == "a</think>b"


@pytest.mark.parametrize("kind", KINDS)
def test_unknown_ids_are_passed_over(kind: Callable[[], TokenText]) -> None:
    tokens = kind()
    a, b = byte_ids(tokens, b"ab")
    assert text_of(TextOutput(tokens.decoder()), [[a, 99_999, -1, 2**40], [b]]) == "ab"


def test_sentencepiece_drops_only_the_first_space() -> None:
    tokens = byte_fallback()
    tokens._tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    stripping = TokenText(tokens._tokenizer)
    assert text_of(TextOutput(stripping.decoder()), [[257], [257], [256], [258]]) == "a a plain"
    assert text_of(TextOutput(tokens.decoder()), [[257], [258]]) == " aplain"


@given(st.binary(max_size=40), st.lists(st.integers(1, 5), max_size=20))
def test_text_does_not_depend_on_how_ids_are_grouped(data: bytes, sizes: list[int]) -> None:
    groups, at = [], 0
    for size in sizes:
        groups.append(data[at : at + size])
        at += size
    whole = text_of(byte_output(), [data])
    assert text_of(byte_output(), [*groups, data[at:]]) == whole
    assert whole == data.decode("utf-8", "replace")


def streamed(text: Sequence[str], *stops: str) -> tuple[list[str], str, str | None]:
    search = StopStrings(stops)
    given_out = [search.push(part) for part in text]
    return given_out, search.finish(), search.found


def test_a_stop_string_over_several_tokens_is_found_and_not_shown() -> None:
    shown, rest, found = streamed(["be", "ta ga", "mma", " x"], "beta gamma")
    assert ("".join(shown), rest, found) == ("", "", "beta gamma")


def test_a_false_start_is_given_out_at_the_end() -> None:
    shown, rest, found = streamed(["be", "ta de", "lta"], "beta gamma")
    assert ("".join(shown) + rest, found) == ("beta delta", None)
    shown, rest, found = streamed(["x be", "ta ga"], "beta gamma")
    assert (shown, rest, found) == (["x ", ""], "beta ga", None)


def test_held_back_is_no_more_than_what_may_become_a_stop() -> None:
    shown, _, _ = streamed(["aab", "aabaa", "c"], "aabaac")
    assert shown == ["", "aab", ""]


def test_of_overlapping_stops_the_one_complete_first_wins() -> None:
    assert streamed(["xa", "bc"], "abc", "ab") == (["x", ""], "", "ab")
    assert streamed(["xabcd"], "abcd", "bc") == (["xa"], "", "bc")
    assert streamed(["xabc"], "bc", "abc") == (["x"], "", "abc")


def test_empty_stop_strings_stop_nothing() -> None:
    assert streamed(["ab"], "") == (["ab"], "", None)


def test_text_behind_a_stop_is_swallowed() -> None:
    output = byte_output(["END"])
    assert output.push(b"a END b") == [TextPiece("a "), StopFound("END")]
    assert not output.push(b"more")
    assert not output.finish()


def test_a_stop_string_can_end_with_the_last_incomplete_character() -> None:
    output = byte_output(["x\ufffd"])
    assert output.push(b"ax\xf0") == [TextPiece("a")]
    assert output.finish() == [StopFound("x\ufffd")]


@given(
    st.text("abc", max_size=24),
    st.lists(st.text("abc", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_stops_are_found_as_in_a_search_of_the_whole_text(
    text: str, stops: list[str], size: int
) -> None:
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    shown, rest, found = streamed(parts, *stops)
    ends = [
        (text.find(stop) + len(stop), -len(stop), stop) for stop in stops if text.find(stop) >= 0
    ]
    if not ends:
        assert ("".join(shown) + rest, found) == (text, None)
    else:
        end, _, stop = min(ends)
        assert ("".join(shown) + rest, found) == (text[: end - len(stop)], stop)


def test_a_decoder_needs_no_more_than_bytes_of_tokens() -> None:
    decoder: TextDecoder = ByteDecoder(lambda token: {1: b"\xc3", 2: b"\xa9"}.get(token, b""))
    assert decoder.push([1]) == ""
    assert decoder.push([2]) == "é"
