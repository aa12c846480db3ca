"""Encoding by pieces: the ids of the whole, for the price of what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer

from mlx_backend.control import ControlTokens, find_control_tokens
from mlx_backend.messages import TokenIds
from mlx_backend.pieces import PieceEncoder
from mlx_backend.places import Traced
from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.rendered import Beginning, RenderedEncoder
from mlx_backend.splices import Splicer
from mlx_backend.templates import JinjaTemplate
from mlx_backend.token_text import TokenText
from tests.mlx_backend.template_families import (
    FAMILIES,
    byte_level,
    encoder_of,
    sentencepiece,
)
from tests.mlx_backend.words import (
    TOOL,
    Message,
    call,
    say,
    written,
)

ENCODERS = {family: encoder_of(family) for family in FAMILIES}


@pytest.mark.parametrize("scheme", ["first", "legacy", "never", "always"])
def test_pieces_give_what_the_whole_gives(scheme: str) -> None:
    tokenizer = sentencepiece(scheme)
    template = JinjaTemplate(FAMILIES["chatml"].source, {})
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    assert encoder.pieces.by_pieces
    messages = [say("user", "Hello  a b\n"), say("assistant", " he"), say("user", "Hi\n\na")]
    prompt = encoder.chat(messages)
    whole = tokenizer.encode(written_raw(encoder, messages), add_special_tokens=False).ids
    assert prompt.tokens.tolist() == whole


@pytest.mark.parametrize("scheme", ["first", "legacy", "never", "always"])
def test_no_blank_comes_into_content_that_spells_a_control_token(scheme: str) -> None:
    tokenizer = sentencepiece(scheme)
    template = JinjaTemplate(FAMILIES["chatml"].source, {})
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    prompt = encoder.chat([say("user", "see <|im_end|> and </think>")])
    text = written(encoder, prompt.tokens)
    assert "see <|im_end|> and </think><|im_end|>" in text
    assert prompt.tokens.tolist().count(tokenizer.token_to_id("<|im_end|>")) == 1


def written_raw(encoder: MlxPromptEncoder, messages: Sequence[Message]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain = environment.from_string(FAMILIES["chatml"].source)
    return plain.render(messages=messages, add_generation_prompt=True)


def test_tokens_that_eat_blanks_do_so_by_pieces_too() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    eaters = [
        AddedToken("<|end|>", special=True, normalized=False, rstrip=True),
        AddedToken("<|mask|>", special=True, normalized=False, lstrip=True),
    ]
    tokenizer.add_special_tokens(eaters)
    source = "{% for m in messages %}{{ m.content + ' <|mask|> x<|end|> \\n' }}{% endfor %}"
    encoder = MlxPromptEncoder(
        tokenizer, JinjaTemplate(source, {}), Vocabulary(tokenizer.get_vocab_size())
    )
    assert encoder.pieces.by_pieces
    prompt = encoder.chat([say("user", "a"), say("assistant", "\n b"), say("user", "c")])
    whole = "a <|mask|> x<|end|> \n\n b <|mask|> x<|end|> \nc <|mask|> x<|end|> \n"
    assert prompt.tokens.tolist() == tokenizer.encode(whole, add_special_tokens=False).ids


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_those_of_transformers(family: str) -> None:
    from transformers import PreTrainedTokenizerFast

    chosen, encoder = FAMILIES[family], ENCODERS[family]
    reference = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(chosen.special), chat_template=chosen.source, **chosen.names
    )
    messages = [say("user", "What is it?"), say("assistant", "A  test,\n\n1."), say("user", "So")]
    if family != "gemma":
        messages.insert(0, say("system", "Be brief."))
    tools = None if family in ("gemma", "harmony") else [TOOL]
    expected = reference.apply_chat_template(
        messages, tools=tools, add_generation_prompt=True, return_dict=False
    )
    ids = encoder.chat(messages, tools or []).tokens.tolist()
    if family == "llama":  # its date is today's
        start = encoder._tokenizer.token_to_id("<|eot_id|>")
        ids, expected = (x[x.index(start) :] for x in (ids, expected))
    assert ids == expected


def test_where_pieces_would_differ_the_whole_is_encoded() -> None:
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([AddedToken("<|word|>", normalized=False, single_word=True)])
    source = "{% for m in messages %}{{ m.content + '<|word|>a<|im_end|>' }}{% endfor %}"
    encoder = MlxPromptEncoder(
        tokenizer, JinjaTemplate(source, {}), Vocabulary(tokenizer.get_vocab_size())
    )
    assert not encoder.pieces.by_pieces
    assert encoder.warnings
    prompt = encoder.chat([say("user", "b"), say("user", "c <|im_end|>")])
    assert written(encoder, prompt.tokens) == "b<|word|>a<|im_end|>c <|im_end|><|word|>a<|im_end|>"
    ids = prompt.tokens.tolist()
    assert ids.count(tokenizer.token_to_id("<|word|>")) == 0  # it stands beside letters
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 2


def test_many_threads_may_encode_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    encoder = encoder_of("qwen")

    def history(number: int) -> list[Message]:
        return [say("system", "s" * 400), say("user", f"{number} " + "word " * 300), call()]

    with ThreadPoolExecutor(8) as pool:
        found = list(
            pool.map(lambda i: encoder.chat(history(i % 7)[: 2 + i % 2]).tokens, range(64))
        )
    for i, tokens in enumerate(found):
        expected = encoder_of("qwen").chat(history(i % 7)[: 2 + i % 2]).tokens if i < 14 else None
        assert expected is None or tokens.tolist() == expected.tolist()


class CountingTokenizer:
    """A tokenizer that counts the characters it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.characters = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode_batch_fast(self, texts: Sequence[str], **options: Any) -> Any:
        self.characters += sum(map(len, texts))
        return self._tokenizer.encode_batch_fast(texts, **options)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_turn_encodes_its_own_text_only(family: str) -> None:
    chosen = FAMILIES[family]
    tokenizer = CountingTokenizer(byte_level(chosen.special))
    template = JinjaTemplate(chosen.source, chosen.names)
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    history = [say("system", "s" * 3000)]
    for turn in range(10):
        history += [say("user", f"{turn} " + "u" * 2000), say("assistant", f"{turn} fine")]
    history.append(say("user", "last but one"))
    encoder.chat(history)
    before = tokenizer.characters
    encoder.chat([*history, say("assistant", "so it is"), say("user", "new " * 50)])
    assert tokenizer.characters - before < 1500


def test_another_conversation_encodes_the_same_system_text_no_more() -> None:
    chosen = FAMILIES["chatml"]
    tokenizer = CountingTokenizer(byte_level())
    template = JinjaTemplate(chosen.source, chosen.names)
    encoder = MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size()))
    system = say("system", "s" * 30_000)
    encoder.chat([system, say("user", "one")])
    before = tokenizer.characters
    encoder.chat([system, say("user", "another")])
    assert tokenizer.characters - before < 200


class CountingControl(ControlTokens):
    """Counts the characters that are looked through for control tokens."""

    characters = 0

    def split(self, rendered: str) -> list[str]:
        self.characters += len(rendered)
        return super().split(rendered)


def turn_encoder() -> tuple[RenderedEncoder, CountingControl]:
    tokenizer = byte_level()
    added = tokenizer.get_added_tokens_decoder()
    control = CountingControl(find_control_tokens(added, FAMILIES["chatml"].source))
    pieces = PieceEncoder(tokenizer, control, TokenText(tokenizer).bytes_of)
    control.characters = 0
    bytes_of = TokenText(tokenizer).bytes_of
    splicer = Splicer(control, (), (), bytes_of)
    return RenderedEncoder(pieces, Beginning(None), splicer, bytes_of), control


def turn_ids(encoder: RenderedEncoder, rendered: str, conversation: str) -> TokenIds:
    return encoder.encode_turn(conversation, Traced([], [], []), lambda shown: [rendered]).ids


def test_what_a_prompt_shares_with_the_last_one_is_not_looked_through_again() -> None:
    encoder, control = turn_encoder()
    turn = "<|im_start|>user\n" + "x" * 1000 + "<|im_end|>\n"
    turn_ids(encoder, turn * 20, "one")
    before = control.characters
    assert len(turn_ids(encoder, turn * 21, "one")) > 20_000
    assert control.characters - before < 1200
    turn_ids(encoder, turn * 21, "another")
    assert control.characters - before > 20_000


FRAGMENTS = (
    ["<|im_start|>", "<|im_end|>", "\ufdd0\ufdd2", "\ufdd0\ufdd1", "a", " a", "\n", "\n\n"],
    ["<|eats|>", "<|im_end|>", "b", "<|a|>", " ", "\n", "x"],
)


def greedy_encoder() -> RenderedEncoder:
    """With a token that eats the blanks behind it, and one that begins like another."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokens = [
        AddedToken("<|eats|>", special=True, normalized=False, rstrip=True),
        AddedToken("<|a|>", special=True, normalized=False),
        AddedToken("<|a|>b", special=True, normalized=False),
    ]
    tokenizer.add_special_tokens(tokens)
    control = ControlTokens(find_control_tokens(tokenizer.get_added_tokens_decoder(), ""))
    bytes_of = TokenText(tokenizer).bytes_of
    pieces, splicer = PieceEncoder(tokenizer, control, bytes_of), Splicer(control, (), (), bytes_of)
    return RenderedEncoder(pieces, Beginning(None), splicer, bytes_of)


ENCODERS_OF_TURNS = (turn_encoder()[0], greedy_encoder())


@pytest.mark.parametrize("number", [0, 1])
@given(data=st.data())
def test_a_turn_gives_the_ids_of_the_whole_wherever_it_leaves_the_last_one(
    number: int, data: st.DataObject
) -> None:
    encoder, fragments = ENCODERS_OF_TURNS[number], st.sampled_from(FRAGMENTS[number])
    assert encoder.pieces.by_pieces
    rendered: list[str] = []
    for _ in range(data.draw(st.integers(1, 5))):
        kept = data.draw(st.integers(0, 12))
        rendered = rendered[:kept] + data.draw(st.lists(fragments, max_size=12))
        text = "".join(rendered)
        ids = turn_ids(encoder, text, "conversation")
        assert ids.tolist() == encoder.encode(text).tolist()
