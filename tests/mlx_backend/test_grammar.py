"""Constraints to grammars: what is enforced, what is refused, and how thoughts come before."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from mlx_backend.answers import find_answers
from mlx_backend.errors import ConstraintRejected
from mlx_backend.grammar import MOST_CHARACTERS, compiler_for, make_vocabulary
from mlx_backend.messages import CallableTool, Constraint, Grammar, Prompt, token_ids
from mlx_backend.output.harmony import Harmony
from mlx_backend.output.lark import WHITE_SPACE
from mlx_backend.tiny_tokenizer import TEMPLATES, make_tokenizer
from tests.mlx_backend.grammars import IN_THOUGHT, Model

CODER_TEMPLATE = TEMPLATES["plain"] + "{# <function=f><parameter=k> #}"
OBJECT = {"type": "object"}


@pytest.fixture(scope="module")
def model() -> Model:
    """Without a template: thoughts are whatever tags the tokenizer has."""
    return Model(TEMPLATES["plain"])


def schema(**properties: Any) -> Constraint:
    names = list(properties)
    return Constraint({"type": "object", "properties": properties, "required": names})


@pytest.mark.parametrize(
    ("constraint", "good", "bad"),
    [
        (Constraint({}), '{"a": [1, {"b": null}]}', "[1]"),
        (schema(a={"type": "integer"}), '{"a": 12}', '{"a": "12"}'),
        (schema(a={"type": "integer"}), '{"a": 1, "other": true}', "{}"),
        (schema(a={"enum": ["x", 3, None]}), '{"a": 3}', '{"a": 4}'),
        (schema(a={"type": "string", "maxLength": 2}), '{"a": "é!"}', '{"a": "abc"}'),
        (schema(a={"$ref": "#/properties/b"}, b={"const": 1}), '{"a": 1, "b": 1}', '{"a": 2'),
        (Constraint({"type": "array", "items": OBJECT}), "[{}, {}]", "[1]"),
        (Constraint({**OBJECT, "additionalProperties": False}), "{}", '{"a": 1}'),
        (Constraint({"anyOf": [{"const": "a"}, OBJECT]}), '"a"', '"b"'),
    ],
)
def test_an_answer_is_json_as_the_schema_says(
    model: Model, constraint: Constraint, good: str, bad: str
) -> None:
    grammar = model.compile(constraint)
    assert model.is_whole(grammar, good)
    assert not model.is_whole(grammar, bad)
    assert not model.is_whole(grammar, good[:-1])


def test_a_turn_ends_where_the_answer_is_whole_and_there_it_has_to(model: Model) -> None:
    grammar = model.compile(schema(a={"type": "integer", "maximum": 9, "minimum": 1}))
    assert model.allowed(grammar, '{"a": 4') == {model.ids(c)[0] for c in "},\n "}
    assert model.allowed(grammar, '{"a": 4}') == model.stop_ids


def test_white_space_is_free_but_never_endless(model: Model) -> None:
    grammar = model.compile(schema(a=OBJECT))
    assert model.is_whole(grammar, '{"a":{}}')
    assert model.is_whole(grammar, '{\n  "a" :\n' + " " * 40 + "{ }\n}")
    assert model.allowed(grammar, '{\n\n"a"') is None
    assert model.allowed(grammar, '{  "a"') is None
    assert model.allowed(grammar, "{\n" + " " * 41) is None
    assert "{0,40}" in WHITE_SPACE


@pytest.mark.parametrize(
    ("constraint", "why"),
    [
        (schema(a={"not": OBJECT}), "not"),
        (schema(a={"type": "array", "uniqueItems": True}), "uniqueItems"),
        (schema(a={"type": "string", "pattern": "(?=a)b"}), "look-around"),
        (schema(a={"type": "string", "format": "made-up"}), "made-up"),
        (schema(a={"$ref": "https://example.org/schema"}), "example.org"),
        (schema(a={"$ref": "#/nowhere"}), "nowhere"),
        (schema(a={"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf"),
        (Constraint({"type": "made-up"}), "made-up"),
        (Constraint({"enum": []}), "anyOf is empty"),
        (Constraint({"$ref": "#"}), "nothing is valid"),
        (schema(a={"type": "integer", "multipleOf": 999_983}), "multipleOf"),
        (Constraint({"x-guidance": {"lenient": True}, "not": OBJECT}), "not"),
        (schema(a={"const": "\ud800"}), "cannot be enforced"),
    ],
)
def test_what_cannot_be_enforced_to_the_letter_is_refused(
    model: Model, constraint: Constraint, why: str
) -> None:
    with pytest.raises(ConstraintRejected, match=why):
        model.compile(constraint)


def test_schemas_have_limits(model: Model) -> None:
    many = {f"name{i}": {"type": "string"} for i in range(MOST_CHARACTERS // 25)}
    with pytest.raises(ConstraintRejected, match="larger than"):
        model.compile(schema(**many))
    deep: dict[str, Any] = OBJECT
    for _ in range(3_000):
        deep = {"type": "object", "properties": {"a": deep}}
    with pytest.raises(ConstraintRejected):
        model.compile(Constraint(deep))
    several = {"anyOf": [{"type": "integer", "multipleOf": 9_973 + i} for i in range(20)]}
    with pytest.raises(ConstraintRejected, match="multipleOf"):
        model.compile(Constraint(several))
    alternatives = [{"type": "object", "properties": {f"p{i}": OBJECT}} for i in range(8)]
    with pytest.raises(ConstraintRejected, match="too large"):
        model.compile(Constraint({"allOf": [{"anyOf": alternatives}] * 8}))


WORDS = st.sampled_from(
    ["type", "object", "string", "properties", "items", "anyOf", "allOf", "$ref", "#", "enum",
     "const", "multipleOf", "pattern", "^a+$", "required", "maxLength", "\ud800", "<think>"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(schema=st.dictionaries(WORDS, VALUES, max_size=4))
@settings(max_examples=60, deadline=None)
def test_whatever_a_schema_is_it_is_compiled_or_refused(schema: dict[str, Any]) -> None:
    model = Model(TEMPLATES["plain"])
    for constraint in (Constraint(schema), Constraint(tools=(CallableTool("f", schema),))):
        with suppress(ConstraintRejected):
            assert model.allowed(model.compile(constraint))


def test_the_same_constraint_is_compiled_once(model: Model) -> None:
    one, other = (model.compile(schema(a={"const": 1})) for _ in range(2))
    assert one.compiled is other.compiled
    assert model.compile(schema(a={"const": 2})).compiled is not one.compiled
    assert model.is_whole(one, '{"a": 1}')  # and what one answer said is not in the other's way
    assert model.is_whole(other, '{"a": 1}')


def test_an_answer_may_think_first(model: Model) -> None:
    grammar = model.compile(Constraint({}))
    thought = '<think>{"a" <tool_call> \n no end in sight'
    allowed = model.allowed(grammar, thought)
    assert allowed is not None
    assert len(allowed) == model.tokenizer.get_vocab_size() - len(model.stop_ids)
    assert model.is_whole(grammar, thought + "</think>{}")
    assert model.is_whole(grammar, thought + "</think>\n\n{}")
    assert model.allowed(grammar, thought + "</think>\n\n\n") is None
    assert model.allowed(grammar, "Well: {") is None


def test_an_answer_that_begins_in_a_thought_ends_it_first(model: Model) -> None:
    grammar = model.compile(Constraint({}), IN_THOUGHT)
    assert model.is_whole(grammar, "{} I think</think>\n{}")
    assert not model.is_whole(grammar, "{}")


def test_behind_a_closed_thought_there_is_no_other(model: Model) -> None:
    closed = Prompt(token_ids(model.ids("<think>\n\n</think>\n\n")))
    grammar = model.compile(Constraint({}), closed)
    assert model.allowed(grammar, "<think>") is None
    assert model.is_whole(grammar, "{}")


def test_tags_that_are_no_tokens_are_told_by_their_characters() -> None:
    model = Model("{# <seed:think> … </seed:think> #}")
    grammar = model.compile(Constraint({}))
    assert model.is_whole(grammar, "<seed:think>{} hm </seed </seed:think>\n{}")
    assert model.is_whole(grammar, "{}")
    assert not model.is_whole(grammar, "<seed:think>{}")


def test_marks_spelled_in_strings_are_text_and_never_the_marks_tokens(model: Model) -> None:
    grammar = model.compile(schema(a={"type": "string"}))
    allowed = model.allowed(grammar, '{"a": "')
    assert allowed is not None
    assert allowed.isdisjoint(model.tokenizer.get_added_tokens_decoder())
    assert {model.tokenizer.token_to_id(character) for character in "<think>"} <= allowed


def test_marks_spelled_by_a_schema_are_written_as_text(model: Model) -> None:
    grammar = model.compile(Constraint({"const": "<think><|im_end|>"}))
    said: list[int] = model.ids('"')
    while not model.stop_ids <= (allowed := model.allowed_after(grammar, said) or set()):
        said.append(min(allowed))
    assert model.tokenizer.decode(said, skip_special_tokens=False) == '"<think><|im_end|>"'
    assert len(said) > 10


READ = CallableTool("read", {**OBJECT, "properties": {"path": {"type": "string"}}})
LIST = CallableTool("list")


def test_a_forced_call_is_one_of_the_tools_and_may_repeat(model: Model) -> None:
    read = '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
    listed = '<tool_call>\n{"name": "list", "arguments": {"x": [1]}}\n</tool_call>'
    several = model.compile(Constraint(tools=(READ, LIST)))
    assert model.is_whole(several, f"<think>hm</think>\n{read}\n{listed}")
    assert model.allowed(several, '<tool_call>\n{"name": "write"') is None
    assert model.allowed(several, "{}") is None
    one = model.compile(Constraint(tools=(READ, LIST), may_repeat=False))
    assert model.allowed(one, listed) == model.stop_ids
    either = model.compile(Constraint({}, tools=(READ,)))
    assert model.is_whole(either, '{"a": 1}')
    assert model.is_whole(either, read)


def test_parameters_in_tags_are_text_or_json_as_their_types_say() -> None:
    model = Model(CODER_TEMPLATE)
    properties = {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "kind": {"enum": ["a", "b"]},
        "shape": {"$ref": "#/$defs/shape"},
    }
    shape = {**OBJECT, "properties": {"x": {"const": 1}}, "required": ["x"]}
    tool = CallableTool(
        "f", {"properties": properties, "required": ["text"], "$defs": {"shape": shape}}
    )
    grammar = model.compile(Constraint(tools=(tool, LIST)))

    def call(**values: str) -> str:
        written = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
        return f"<tool_call>\n<function=f>\n{written}</function>\n</tool_call>"

    assert model.is_whole(grammar, call(text="1 </parameter> 1\n\n"))
    assert model.is_whole(grammar, call(text="", count="3", kind="b", shape='{"x": 1}'))
    assert model.is_whole(grammar, "<tool_call>\n<function=list>\n</function>\n</tool_call>")
    assert model.is_whole(
        grammar, call(text="x").replace("=f>", "=list>").replace("=text>", "=free>")
    )
    for wrong in (
        call(count="3"),
        call(text="", count="three"),
        call(text="", kind="c"),
        call(text="", shape='{"x": 2}'),
    ):
        assert not model.is_whole(grammar, wrong)


def test_arguments_are_enforced_as_far_as_it_goes(model: Model) -> None:
    odd = {"type": "string", "pattern": "(?=a)b"}
    properties = {"a": {"type": "integer"}, "b": odd, "c": {"type": "array", "uniqueItems": True}}
    tools = (
        CallableTool("f", {**OBJECT, "properties": properties, "required": ["a", "b"]}),
        CallableTool("g", {"type": ["object", "null"], "minProperties": "many"}),
    )
    grammar = model.compile(Constraint(tools=tools))

    def call(name: str, arguments: str) -> str:
        return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'

    assert model.is_whole(grammar, call("f", '{"a": 1, "b": [], "c": [1, 1]}'))
    assert not model.is_whole(grammar, call("f", '{"a": 1}'))
    assert not model.is_whole(grammar, call("f", '{"a": "1", "b": 1}'))
    assert model.is_whole(grammar, call("g", '{"anything": 1}'))


def test_a_model_without_calls_of_its_own_cannot_be_forced_to_one() -> None:
    bare = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([AddedToken("<|end|>", special=True)])
    model = Model("", bare, ["<|end|>"])
    with pytest.raises(ConstraintRejected, match="cannot be enforced"):
        model.compile(Constraint(tools=(READ,)))


def harmony_model() -> Model:
    tokenizer = Tokenizer.from_str(make_tokenizer().to_str())
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in Harmony.marks])
    return Model("<|start|><|channel|><|message|>", tokenizer, ["<|return|>", "<|call|>"])


def test_in_channels_analysis_comes_first_and_json_is_the_final_message() -> None:
    model = harmony_model()
    analysis = "<|channel|>analysis<|message|>{} hm<|end|><|start|>assistant"
    grammar = model.compile(Constraint({}, tools=(READ,)))
    final = "<|channel|>final<|message|>{}"
    assert model.is_whole(grammar, final)
    assert model.is_whole(grammar, analysis + analysis + final)
    assert model.is_whole(grammar, final.replace("final", "final <|constrain|>json"))
    call = "<|channel|>commentary to=functions.read <|constrain|>json<|message|>"
    assert model.is_whole(grammar, analysis + call + '{"path": "a"}')
    assert model.allowed(grammar, final[:-2] + "Here") is None
    assert model.allowed(grammar, call.replace("read", "write")) is None


def byte_fallback_tokenizer() -> Tokenizer:
    """As SentencePiece models are converted: ▁ for a space, bytes where there is no piece."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += list('▁{}[]":,abcdefghijklmnopqrstuvwxyz0123456789')
    pieces += ['{"', "▁{", '":', "▁a"]
    merges = [("{", '"'), ("▁", "{"), ('"', ":"), ("▁", "a")]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        byte_fallback=True,
        unk_token="<unk>",
        fuse_unk=True,
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("[THINK]", normalized=False)])
    return tokenizer


def test_vocabularies_with_byte_fallback_are_understood() -> None:
    tokenizer = byte_fallback_tokenizer()
    model = Model("[THINK]", tokenizer, ["</s>"])
    grammar = model.compile(schema(a={"type": "string"}))
    assert model.is_whole(grammar, '{"a": "é 1"}')
    assert tokenizer.token_to_id("▁{") not in (model.allowed(grammar) or ())


@pytest.mark.parametrize("tokenizer", [make_tokenizer(), byte_fallback_tokenizer()])
def test_every_token_stands_for_the_bytes_that_the_answer_shows(tokenizer: Tokenizer) -> None:
    stop = "<|im_end|>" if tokenizer.token_to_id("<|im_end|>") else "</s>"
    model = Model("", tokenizer, [stop])
    known = make_vocabulary(tokenizer, model.compiler._writing)
    bytes_of = find_answers(tokenizer, "").token_text.bytes_of
    for token in range(tokenizer.get_vocab_size()):
        if not known.is_special_token(token):
            assert known.decode_bytes([token]) == bytes_of(token)
    assert [known.is_special_token(token) for token in model.stop_ids] == [True]


def test_a_tokenizer_that_is_not_made_of_bytes_is_refused_in_words() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "</s>": 1}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.add_special_tokens([AddedToken("</s>", special=True)])
    with pytest.raises(ConstraintRejected, match="tokenizer"):
        Model("", words, ["</s>"]).compile(Constraint({}))


def test_an_end_of_turn_that_is_no_token_of_the_tokenizer_is_none(model: Model) -> None:
    compiler = compiler_for(
        model.tokenizer, find_answers(model.tokenizer, "").format, (), {*model.stop_ids, 5_000}
    )
    assert model.is_whole(compiler.compile(Constraint({}), Prompt(token_ids([0]))), "{}")


def test_a_model_that_never_ends_a_turn_takes_no_constraint() -> None:
    with pytest.raises(ConstraintRejected, match="ends an answer"):
        Model("", None, []).compile(Constraint({}))


def test_a_grammar_is_told_apart_by_its_constraint_alone(model: Model) -> None:
    grammar = model.compile(Constraint({}))
    assert grammar == Grammar(Constraint({}), None)
    assert "compiled" not in json.dumps(repr(grammar))
