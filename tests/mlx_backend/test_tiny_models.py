"""The random models must behave like models: input-dependent, repeatable, loadable from disk."""

import json

import mlx.core as mx
import numpy as np
import pytest
from jinja2 import TemplateError
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from transformers import AutoTokenizer

from mlx_backend.rows import fresh_row
from mlx_backend.tiny_models import CONTEXT_SIZE, KINDS, build, write_folder
from mlx_backend.tiny_tokenizer import (
    CONTROL_TOKENS,
    MARKUP_TOKENS,
    STOP_TOKENS,
    TEMPLATES,
    make_tokenizer,
    token_count,
    token_id,
)
from tests.mlx_backend.tiny_rows import (
    log_probabilities,
    row_of,
    some_tokens,
    tiny_layout,
    tiny_model,
)

BENCH_KINDS = ("tiny-full", "tiny-sliding", "tiny-hybrid")
FOLDER_KINDS = tuple(kind for kind, tiny in KINDS.items() if tiny.make_caches is None)
TOOL = {
    "type": "function",
    "function": {"name": "read_file", "description": "Read", "parameters": {"type": "object"}},
}
CONVERSATION = [
    {"role": "system", "content": "You are brief."},
    {"role": "user", "content": "one?"},
    {"role": "assistant", "content": "1", "reasoning_content": "first thought"},
    {"role": "user", "content": "two?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "second thought",
        "tool_calls": [
            {"type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py"}}}
        ],
    },
    {"role": "tool", "content": "print(2)"},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Writes a kind's folder, once per kind and template."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def write(kind, template="thinking"):
        if (kind, template) not in made:
            made[kind, template] = write_folder(
                kind, root / f"{kind}-{template}", template=template
            )
        return made[kind, template]

    return write


@pytest.fixture
def render(folder):
    def render_with(template, messages, **options):
        tokenizer = AutoTokenizer.from_pretrained(folder("tiny-full", template))
        options = {"tokenize": False, "add_generation_prompt": True, **options}
        return tokenizer.apply_chat_template(messages, **options)

    return render_with


def last_log_probabilities(kind, tokens):
    return log_probabilities(kind, row_of(kind, [tokens[:-1]]), tokens[-1:])[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_token_depends_on_what_was_read_long_before(kind):
    tokens = some_tokens(80)
    changed = np.concatenate([some_tokens(40, seed=9), tokens[40:]])
    one, other = (last_log_probabilities(kind, ids) for ids in (tokens, changed))
    assert np.abs(one - other).mean() > 0.1
    assert one.argmax() != last_log_probabilities(kind, some_tokens(80, seed=3)).argmax()


@pytest.mark.parametrize("kind", KINDS)
def test_weights_come_from_the_seed_alone_and_are_small(kind):
    first, again, other = (
        dict(tree_flatten(build(kind, seed=seed).parameters())) for seed in (1, 1, 2)
    )
    assert all(mx.array_equal(first[name], again[name]) for name in first)
    assert any(not mx.array_equal(first[name], other[name]) for name in first)
    assert sum(array.nbytes for array in first.values()) < 2_500_000
    assert {array.dtype for array in first.values()} <= {mx.float32, mx.uint32, mx.int8}


@pytest.mark.parametrize("kind", FOLDER_KINDS)
def test_a_folder_loads_into_the_model_that_was_built(kind, folder):
    model, config = load_model(folder(kind))
    assert config["vocab_size" if "vocab_size" in config else "text_config"]
    row = fresh_row(tiny_layout(kind), room=50)
    logits = model(mx.array(some_tokens(40))[None], cache=row.caches)
    expected = tiny_model(kind)(mx.array(some_tokens(40))[None])
    assert mx.abs(logits - expected).max() < 1e-4


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FOLDER_KINDS])
def test_a_kind_with_caches_of_its_own_is_not_written(kind, tmp_path):
    with pytest.raises(ValueError, match="caches"):
        write_folder(kind, tmp_path)


@pytest.mark.parametrize("kind", BENCH_KINDS)
def test_a_bench_folder_says_its_context_and_its_stop_tokens(kind, folder):
    config = json.loads((folder(kind) / "config.json").read_text())
    generation = json.loads((folder(kind) / "generation_config.json").read_text())
    assert config["max_position_embeddings"] == CONTEXT_SIZE >= 32_768
    assert generation["eos_token_id"] == [token_id(token) for token in STOP_TOKENS]
    assert config["vocab_size"] == token_count()


def test_any_text_survives_the_tokenizer():
    tokenizer = make_tokenizer()
    text = "def f():\n\treturn 'äöü ✓ 𝄞'  # the end\r\n\n  print() \x00"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode("the print() in the").ids) < len("the print() in the") / 2


def test_the_tokens_before_a_joint_can_change_when_text_follows():
    encode = make_tokenizer().encode
    assert encode("print(").ids != encode("print()").ids[: len(encode("print(").ids)]


def test_control_and_markup_tokens_are_single_ids():
    tokenizer = make_tokenizer()
    for token in (*CONTROL_TOKENS, *MARKUP_TOKENS):
        assert tokenizer.encode(f"a{token}b").ids[1] == token_id(token) < token_count()
    assert tokenizer.decode([token_id("<think>")], skip_special_tokens=True) == "<think>"
    assert tokenizer.decode([token_id("<|im_end|>")], skip_special_tokens=True) == ""


def test_the_folders_tokenizer_is_the_same_one(folder):
    loaded = AutoTokenizer.from_pretrained(folder("tiny-full"))
    text = "hello <think>there</think><|im_end|>"
    assert loaded.encode(text) == make_tokenizer().encode(text).ids
    assert loaded.eos_token == "<|im_end|>"


def test_tools_stand_in_the_head_and_results_in_user_turns(render):
    text = render("thinking", CONVERSATION, tools=[TOOL])
    head = text.split("<|im_end|>")[0]
    assert head.startswith("<|im_start|>system\nYou are brief.")
    assert '"name": "read_file"' in head
    assert '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.py"}}\n</tool_call>' in text
    assert text.endswith(
        "<|im_start|>user\n<tool_response>\nprint(2)\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_neighbouring_tool_results_share_one_user_turn(render):
    text = render("plain", [*CONVERSATION, {"role": "tool", "content": "again"}])
    assert text.count("<|im_start|>user\n<tool_response>") == 1
    assert "</tool_response>\n<tool_response>\nagain\n</tool_response><|im_end|>" in text


def test_the_thinking_template_drops_thinking_before_the_last_user_message(render):
    text = render("thinking", CONVERSATION)
    assert "first thought" not in text
    assert "second thought" in text
    later = render("thinking", [*CONVERSATION, {"role": "user", "content": "three?"}])
    assert "second thought" not in later


def test_the_plain_template_keeps_all_thinking(render):
    text = render("plain", CONVERSATION)
    assert "<think>\nfirst thought\n</think>\n\n1<|im_end|>" in text
    assert "second thought" in text


def test_thinking_can_be_closed_in_the_tail(render):
    assert render("thinking", CONVERSATION, enable_thinking=False).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert render("thinking", CONVERSATION).endswith("<|im_start|>assistant\n")


def test_the_empty_thinking_template_has_a_tail_that_history_lacks(render):
    text = render("empty-thinking", CONVERSATION)
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert text.count("<think>") == 1


def test_the_strict_template_refuses_late_system_messages_and_equal_neighbours(render):
    user, late = {"role": "user", "content": "u"}, {"role": "system", "content": "s"}
    assert render("strict", [late, user]).count("<|im_start|>") == 3
    with pytest.raises(TemplateError, match="beginning"):
        render("strict", [user, late])
    with pytest.raises(TemplateError, match="alternate"):
        render("strict", [user, user])


@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "strict"])
def test_a_late_system_message_stays_in_its_place(render, template):
    late = {"role": "system", "content": "Reminder"}
    text = render(template, [*CONVERSATION, late, {"role": "user", "content": "go"}])
    assert "<|im_start|>system\nReminder<|im_end|>\n<|im_start|>user\ngo<|im_end|>" in text
