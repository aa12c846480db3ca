"""The calls of every family, read from what its models write."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlx_backend.messages import AnswerForm, CallableTool
from mlx_backend.output.formats import CALL_FORMATS, AnswerFormat, find_format
from tests.mlx_backend.answers import Told, made, read, told
from tests.mlx_backend.written_calls import WRITERS, Call

SCHEMA = {
    "properties": {
        "path": {"type": "string"},
        "content": {"type": "string"},
        "zip": {"type": "string"},
        "retries": {"type": "integer"},
        "ratio": {"type": "number"},
        "dry": {"type": "boolean"},
        "tags": {"type": "array"},
        "opt": {"type": ["integer", "null"]},
        "env": {"$ref": "#/$defs/Env"},
    },
    "$defs": {"Env": {"type": "object"}},
}
TOOLS = (CallableTool("write", SCHEMA), CallableTool("now", {"properties": {}}))
TAGGED = [
    "qwen-coder", "seed", "glm", "longcat", "hunyuan", "minimax", "muse-spark", "dsml", "dsml-4",
    "minicpm", "kimi-k3",
]  # fmt: skip
JSON = ["kimi", "deepseek", "solar"]
GEMMA = ["gemma-4", "function-gemma", "tool-code"]
FAMILIES = [*TAGGED, *JSON, *GEMMA, "minimax-m3"]
UNMARKED = {"llama"}  # has no mark of its own, so it is a call only where an answer begins

pytestmark = pytest.mark.filterwarnings("error")


@cache
def format_of(name: str, has_marks: bool) -> AnswerFormat:
    return made(name, has_marks=has_marks)


def answer_of(
    name: str, text: str, group: int = 3, *, has_marks: bool = False, is_cut: bool = False
) -> Told:
    """What an answer says in tokens of `group` bytes, with or without tokens for the marks."""
    form = AnswerForm(tools=TOOLS)
    return told(read(format_of(name, has_marks), text, form, sizes=(group,), is_cut=is_cut))


def ways(name: str, text: str) -> Iterator[Told]:
    """The answer in all kinds of tokens."""
    for has_marks in (False, True):
        for group in (1, 2, 7, 10_000):
            yield answer_of(name, text, group, has_marks=has_marks)


def assert_told(name: str, text: str, *calls: Call, says: str = "") -> None:
    """Nothing but these calls and this text, with no warning."""
    for answer in ways(name, text):
        assert (answer.calls, answer.text) == ([*calls], says)
        assert (answer.begun, answer.warnings) == ([], [])


ALL = {
    "path": "a b.txt",
    "zip": "02134",
    "retries": 5,
    "ratio": 0.5,
    "dry": True,
    "tags": ["a", {"b": ["c"]}],
    "opt": None,
    "env": {"A": "b"},
}


def test_every_format_of_the_registry_is_written_here() -> None:
    assert {kind.name for kind in CALL_FORMATS} == WRITERS.keys()


@pytest.mark.parametrize("name", WRITERS)
def test_calls_are_read_as_the_family_writes_them(name: str) -> None:
    arguments = {key: value for key, value in ALL.items() if name != "minimax-m3" or key != "opt"}
    calls = [("write", arguments), ("now", {})]
    assert_told(name, WRITERS[name](calls), *calls)


@pytest.mark.parametrize("name", sorted(WRITERS.keys() - UNMARKED))
def test_calls_stand_between_texts(name: str) -> None:
    one, two = ("write", {"path": "x"}), ("now", {})
    text = f"First.\n{WRITERS[name]([one])}\nthen\n{WRITERS[name]([two])}"
    assert_told(name, text, one, two, says="First.then")


NASTY = """
 line one <b>&lt;é🙂"quoted" \\d+ 'it' {x: 1} [y], z: 1
see </tool_call> and <tool_call> here, </parameter> and </function>, </parameter></function>
</arg_value> <arg_key> </invoke> ]]> </param> <|tool_call_end|> <｜tool▁call▁end｜>
<|"|> <escape> ``` <|close|>argument<|sep|> <｜DSML｜invoke </｜DSML｜parameter>
<parameter=path> </atem:parameter> </longcat_arg_value> </arg_value:opensource>  """


@pytest.mark.parametrize("name", FAMILIES)
def test_closing_tags_in_a_value_are_the_value(name: str) -> None:
    call = ("write", {"content": NASTY, "path": "p"})
    assert_told(name, WRITERS[name]([call, call]), call, call)


@pytest.mark.parametrize("name", TAGGED)
def test_whole_calls_that_a_value_quotes_are_the_value(name: str) -> None:
    example = WRITERS[name]([("write", {"zip": "1", "retries": 2}), ("now", {})])
    call = ("write", {"content": f"# How to call\n\n{example}\nThat is all.", "path": "p"})
    if name != "minicpm":  # whose values stand in CDATA, from which no example gets out
        assert_told(name, WRITERS[name]([call, call]), call, call)


@pytest.mark.parametrize("name", TAGGED)
def test_the_beginning_of_a_call_in_a_value_quotes_none(name: str) -> None:
    begun = WRITERS[name]([("write", {"zip": "1"})]).partition("1")[0]
    calls = [("write", {"content": f"It begins so: {begun}", "retries": 1}), ("now", {})]
    assert_told(name, WRITERS[name](calls), *calls)


WORDS = [
    "</parameter>", "</function>", "</tool_call>", "<tool_call>", "<function=write>", "</invoke>",
    "</arg_value>", "</tool_call", "</", "]]>", "<|", '<|"|>', "<escape>", "\n", "\n\n", " ",
    "```", '"', "'", "\\", "\\n", "{", "}", "[", "]", ",", ":", "&amp;", "é", "🙂", "a", "5",
    "null", "<|tool_call_end|>", "<|close|>argument<|sep|>", "</param>", "</｜DSML｜parameter>",
]  # fmt: skip
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "content": st.lists(st.sampled_from(WORDS), max_size=6).map(lambda w: " .".join(w)),
        "retries": st.integers(-(10**9), 10**9),
        "dry": st.booleans(),
        "opt": st.integers(0, 9),
        "tags": st.lists(st.sampled_from(WORDS[:8]), min_size=1, max_size=3),
    },
)


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=8, deadline=None)
@given(calls=st.lists(st.tuples(st.just("write"), VALUES), min_size=1, max_size=2), data=st.data())
def test_what_is_written_is_read_however_it_is_split(
    name: str, calls: list[Call], data: st.DataObject
) -> None:
    text = WRITERS[name](calls)
    has_marks, group = data.draw(st.booleans()), data.draw(st.integers(1, 12))
    assert answer_of(name, text, group, has_marks=has_marks).calls == calls
    cut = text[: data.draw(st.integers(0, len(text)))]
    for is_cut in (False, True):
        bit_by_bit, at_once = (
            answer_of(name, cut, size, has_marks=has_marks, is_cut=is_cut)
            for size in (group, 10_000)
        )
        assert bit_by_bit == at_once
        assert bit_by_bit.calls == calls[: len(bit_by_bit.calls)] or not is_cut


@pytest.mark.parametrize("name", FAMILIES)
def test_the_name_of_no_tool_is_text(name: str) -> None:
    text = WRITERS[name]([("nothing", {"path": "x"})])
    for answer in ways(name, text):
        assert not answer.calls
        assert not answer.begun
        assert answer.text.strip() == text.strip()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_in_a_thought_is_thought(name: str) -> None:
    quoted = WRITERS[name]([("write", {"path": "x"})])
    real = ("write", {"path": "y"})
    for answer in ways(name, f"<think>{quoted}</think>{WRITERS[name]([real])}"):
        assert answer.calls == [real]
        assert answer.thought.strip() == quoted.strip()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "tool-code"])
def test_a_call_in_a_fence_is_text(name: str) -> None:
    quoted = WRITERS[name]([("write", {"path": "x"})])
    text = f"So:\n```\n{quoted}\n```\n"
    for answer in ways(name, text + WRITERS[name]([("now", {})])):
        assert answer.calls == [("now", {})]
        assert answer.text.strip() == text.strip()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_is_cut_is_never_finished(name: str) -> None:
    text = WRITERS[name]([("write", {"path": "x", "content": "some words"})])
    for end in range(text.index("some words") + 8):
        assert answer_of(name, text[:end], is_cut=True).calls == []


@pytest.mark.parametrize("name", FAMILIES)
def test_closing_marks_that_are_left_out_at_the_end_are_not_missed(name: str) -> None:
    call = ("write", {"path": "x", "retries": 3})
    text = WRITERS[name]([call]).rstrip()
    closings = text[text.rindex("3") + 1 :]
    finished = []
    for end in range(len(text) - len(closings), len(text)):
        answer = answer_of(name, text[:end])
        assert answer.text == "" or not answer.calls
        finished.append(answer.calls == [call])
    assert finished == sorted(finished), "what more is written cannot make it less certain"
    assert sum(finished) >= len(closings) // 2


@pytest.mark.parametrize("name", FAMILIES)
def test_a_call_that_ends_in_the_middle_is_not_lost_silently(name: str) -> None:
    text = WRITERS[name]([("write", {"path": "x", "content": "some words"})])
    for end in (text.index("write") + 3, text.index("some words") + 4):
        for answer in ways(name, text[:end]):
            assert not answer.calls
            assert answer.warnings
            assert answer.begun or answer.text == text[:end]


@pytest.mark.parametrize("name", TAGGED)
def test_text_is_typed_by_the_schema(name: str) -> None:
    text = {
        "zip": "02134", "retries": "5.0", "ratio": "1e2", "dry": "True", "tags": "['a']",
        "opt": "", "content": "&lt;\n", "env": "{'A': None}",
    }  # fmt: skip
    typed = {
        "zip": "02134", "retries": 5, "ratio": 100.0, "dry": True, "tags": ["a"],
        "opt": None, "content": "&lt;\n", "env": {"A": None},
    }  # fmt: skip
    assert_told(name, WRITERS[name]([("write", text)]), ("write", typed))
    bad = {"retries": "2026-01-15", "tags": "none", "dry": "maybe"}
    assert_told(name, WRITERS[name]([("write", bad)]), ("write", bad))
    assert_told(
        name, WRITERS[name]([("write", {"retries": "", "zip": ""})]), ("write", {"zip": ""})
    )


def assert_malformed(name: str, text: str) -> None:
    """Warned of, and the text is there as it was written."""
    for answer in ways(name, text):
        assert not answer.calls
        assert answer.text == text
        assert answer.warnings


def test_what_is_no_call_behind_an_opening_mark_is_text() -> None:
    assert_malformed("qwen-coder", "<tool_call>\nwrite it down\n</tool_call>")
    assert_malformed("qwen-coder", "<tool_call>\n<function=write>\nno arguments here")
    assert_malformed("glm", "<tool_call>write it down</tool_call>")
    assert_malformed("minimax", '<minimax:tool_call><invoke name="write">{"a": 1}</invoke>')
    assert_malformed("kimi", "<|tool_calls_section_begin|> nothing <|tool_calls_section_end|>")
    assert_malformed("deepseek", "<｜tool▁calls▁begin｜>write<｜tool▁calls▁end｜>")
    assert_malformed("gemma-4", "<|tool_call>write(1)<tool_call|>")
    assert_malformed("gemma-4", "<|tool_call>call:write{path}<tool_call|>")


@pytest.mark.parametrize("length", [299, 300, 301])
def test_a_name_is_too_long_or_not_however_it_came(length: int) -> None:
    call = WRITERS["kimi"]([("n" * length, {})]).replace("functions.", "").replace(":0", "")
    first, *others = ways("kimi", call)
    assert first.text == call
    assert ("none of the request's tools" in first.warnings[0]) == (length <= 300)
    assert all(answer == first for answer in others)


def test_arguments_in_a_string_that_are_no_object_fail_where_the_string_ends() -> None:
    call = WRITERS["kimi"]([("write", {})]).replace("{}", '"no object at all"')
    first, *others = ways("kimi", call)
    assert first.warnings
    assert not first.calls
    assert all(answer == first for answer in others)


def test_qwen_coder_may_leave_out_the_opening_tag() -> None:
    call = "<function=write>\n<parameter=path>\nx\n</parameter>\n</function>\n</tool_call>"
    assert_told("qwen-coder", f"Well.\n{call}", ("write", {"path": "x"}), says="Well.")


def test_qwen_coder_may_forget_the_tag_behind_the_last_value() -> None:
    text = "<tool_call>\n<function=write>\n<parameter=path>\nx\n</function>\n</tool_call>"
    assert_told("qwen-coder", text, ("write", {"path": "x"}))


@pytest.mark.parametrize("name", ["qwen-coder", "glm"])
def test_json_where_tags_should_be_is_read_too(name: str) -> None:
    call = ("write", {"path": "</tool_call>"})
    assert_told(name, WRITERS["hermes"]([call, ("now", {})]), call, ("now", {}))


def test_only_the_framing_newlines_are_taken_from_a_value() -> None:
    text = "<tool_call><function=write><parameter=path>{}</parameter></function></tool_call>"
    for written, value in (("\n\nx\n\n", "\nx\n"), ("x", "x"), ("\n\n", ""), (" x ", " x ")):
        assert_told("qwen-coder", text.format(written), ("write", {"path": value}))


def test_an_argument_is_not_written_twice() -> None:
    for key, value in (("content", "a"), ("retries", "many")):
        again = f"</parameter>\n<parameter={key}>\nb"
        text = WRITERS["qwen-coder"]([("write", {key: value})])
        twice = text.replace(f"\n{value}\n", f"\n{value}\n{again}\n")
        assert_told("qwen-coder", twice, ("write", {key: f"{value}\n{again}"}))


def test_glm_may_write_a_call_on_one_line() -> None:
    call = ("write", {"path": "x", "retries": 2})
    assert_told("glm", WRITERS["glm"]([call, ("now", {})]).replace("\n", ""), call, ("now", {}))


def test_deepseek_r1_writes_a_fence() -> None:
    text = (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>write\n"
        '```json\n{"path": "```"}\n```<｜tool▁call▁end｜>\n'
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜>"
        "<｜tool▁calls▁end｜>"
    )
    assert_told("deepseek", text, ("write", {"path": "```"}), ("now", {}))


def test_minimax_m3_types_what_is_nested_by_the_schema_there() -> None:
    points = {"type": "array", "items": {"$ref": "#/$defs/Point"}}
    point = {"properties": {"x": {"type": "integer"}, "name": {"type": "string"}}}
    tool = CallableTool("draw", {"properties": {"points": points}, "$defs": {"Point": point}})
    call = ("draw", {"points": [{"x": 1, "name": "2"}, {"x": 3}]})
    pieces = read(
        format_of("minimax-m3", True), WRITERS["minimax-m3"]([call]), AnswerForm(tools=(tool,))
    )
    assert told(pieces).calls == [call]


@pytest.mark.parametrize("value", ["\n", " ", "\n x\n"])
def test_minimax_m3_takes_white_space_for_a_value_not_for_an_element(value: str) -> None:
    call = ("write", {"content": value})
    assert_told("minimax-m3", WRITERS["minimax-m3"]([call]), call)


def test_kimi_k3_may_write_all_arguments_as_json() -> None:
    text = (
        '<|open|>tools<|sep|><|open|>call tool="write" index="1"<|sep|>'
        '<|open|>json type="object"<|sep|>{"path": "a<|close|>json<|sep|>"}<|close|>json<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|>"
    )
    assert_told("kimi-k3", text, ("write", {"path": "a<|close|>json<|sep|>"}))


def test_kimi_k3_thinks_and_responds_in_elements_of_its_own() -> None:
    call = ("write", {"path": "x"})
    text = (
        "<|open|>think<|sep|>hm<|close|>think<|sep|><|open|>response<|sep|>Well."
        f"<|close|>response<|sep|>{WRITERS['kimi-k3']([call])}<|close|>message<|sep|>"
    )
    for answer in ways("kimi-k3", text):
        assert (answer.thought, answer.text, answer.calls) == ("hm", "Well.", [call])


@pytest.mark.parametrize(
    ("name", "opening", "closing"),
    [
        ("gemma-4", "<|channel>thought\n", "\n<channel|>"),
        ("hunyuan", "<think:opensource>", "</think:opensource>"),
    ],
)
def test_families_with_think_tags_of_their_own_are_heard(
    name: str, opening: str, closing: str
) -> None:
    call = ("write", {"path": "x"})
    quoted = WRITERS[name]([("now", {})])
    for answer in ways(name, f"{opening}Hm: {quoted}{closing}Well.\n{WRITERS[name]([call])}"):
        assert answer.thought.strip() == f"Hm: {quoted}".strip()
        assert (answer.text, answer.calls) == ("Well.", [call])


def test_muse_spark_says_whom_each_message_is_for() -> None:
    call = ("write", {"path": "x"})
    written = WRITERS["muse-spark"]([call])
    text = (
        f" to=self<|message|>Hm: {written}<|eom|><|start|>assistant to=user<|message|>I go to=x."
        f"<|eom|><|start|>assistant to=write<|message|>{written}<|eom|>"
        f"<|start|>assistant to=self<|message|>And now?<|eom|><|start|>assistant to=write"
        f"<|message|>{written}<|eot|>"
    )
    for answer in ways("muse-spark", text):
        assert answer.thought == f"Hm: {written}And now?"
        assert (answer.text, answer.calls, answer.warnings) == ("I go to=x.", [call, call], [])
    with_template = find_format("<atem:function_calls> <|start|>", ())
    for form in (AnswerForm(), AnswerForm(tools=TOOLS)):
        answer = told(read(with_template, text, form))
        assert answer.thought.startswith("Hm: ")
        assert answer.text.startswith("I go to=x.")


def test_what_dsml_says_of_a_value_counts_where_the_schema_is_silent() -> None:
    call = ("write", {"any": 5, "other": "5"})
    assert_told("dsml", WRITERS["dsml"]([call]), call)


def test_gemma_may_write_strings_in_quotes() -> None:
    text = '<|tool_call>call:write{path:"a, \\"b\\"", "retries": 3}<tool_call|>'
    assert_told("gemma-4", text, ("write", {"path": 'a, "b"', "retries": 3}))
