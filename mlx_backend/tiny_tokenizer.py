"""A byte-level BPE tokenizer with ChatML templates, built without a download.

256 bytes, a few merges (so that text can tokenise differently at a joint), the control tokens of
ChatML, and `<think>`, `<tool_call>` with their ends as added tokens that are not control tokens.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

STOP_TOKENS = ("<|im_end|>", "<|endoftext|>")
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
MERGES = (
    "Ġ t", "h e", "Ġt he", "i n", "Ġ a", "e r", "o n", "r e", "Ġ s", "a t", "o r", "e n",
    "i s", "Ġ c", "i t", "Ġ w", "o u", "Ġ o", "a n", "Ġ p", "Ġo f", "in g", "e d", "Ġ in",
    "Ġa n", "Ġan d", "Ġ Ġ", "ĠĠ ĠĠ", "( )", "r in", "p rin", "prin t", "prin t(", "t (",
    "s e", "se l", "sel f", "d e", "de f", "re t", "ret u", "retu r", "retur n", "Ċ Ċ", "\" :",
)  # fmt: skip

_HEAD = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n\\nYou may call these functions:\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools>\\n\\nFor each call, return JSON within <tool_call></tool_call> tags:\\n' }}
{{- '<tool_call>\\n{"name": <name>, "arguments": <arguments>}\\n</tool_call><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
"""

_LAST_QUERY = """\
{%- set ns = namespace(last_query=-1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}{%- set ns.last_query = loop.index0 %}{%- endif %}
{%- endfor %}
"""

_MESSAGES = """\
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
@THINKING@
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or message.content %}{{- '\\n' }}{%- endif %}
{%- if call.function %}{%- set call = call.function %}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
{%- if call.arguments is string %}{{- call.arguments }}
{%- else %}{{- call.arguments | tojson }}{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}
{{- '<|im_start|>user' }}
{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endif %}
{%- endfor %}
"""

_KEEP_THINKING = """\
{%- if message.reasoning_content %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}"""

_DROP_THINKING = """\
{%- if message.reasoning_content and loop.index0 > ns.last_query %}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}
{%- endif %}"""

_TAIL = """\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

_CLOSED_THINKING_TAIL = """\
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""

_EMPTY_THINKING_TAIL = """\
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
"""

_ALTERNATION = """\
{%- set ns = namespace(turn=0) %}
{%- for message in messages %}
{%- if message.role == 'system' %}
{%- if not loop.first %}
{{- raise_exception('System message must be at the beginning.') }}
{%- endif %}
{%- elif message.role == 'user' or message.role == 'assistant' %}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- endfor %}
"""


def _chatml(before: str, thinking: str, tail: str) -> str:
    return before + _MESSAGES.replace("@THINKING@", thinking) + tail


TEMPLATES = {
    "plain": _chatml(_HEAD, _KEEP_THINKING, _TAIL),
    "thinking": _chatml(_HEAD + _LAST_QUERY, _DROP_THINKING, _CLOSED_THINKING_TAIL),
    "empty-thinking": _chatml(_HEAD, "", _EMPTY_THINKING_TAIL),
    "strict": _chatml(_ALTERNATION + _HEAD, "", _TAIL),
}
"""Name to Jinja source.

plain: ChatML, thinking stays in history. thinking: thinking before the last user message is
dropped; `enable_thinking=False` closes it in the generation tail. empty-thinking: the tail always
has an empty think block, which history lacks. strict: refuses late system messages and roles that
do not alternate.
"""


@cache
def make_tokenizer() -> Tokenizer:
    """The tokenizer; shared, do not change it."""
    bytes_alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(bytes_alphabet)}
    merges: list[tuple[str, str]] = []
    for merge in MERGES:
        left, right = merge.split(" ")
        if left in vocabulary and right in vocabulary:
            vocabulary.setdefault(left + right, len(vocabulary))
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    return tokenizer


def token_count() -> int:
    """Ids are below this: every id of the model has a token."""
    return int(make_tokenizer().get_vocab_size())


def token_id(token: str) -> int:
    found = make_tokenizer().token_to_id(token)
    assert found is not None, token
    return int(found)


def write_tokenizer(path: Path, *, template: str, context_size: int) -> None:
    """Write tokenizer.json and tokenizer_config.json into the folder `path`."""
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": STOP_TOKENS[0],
        "pad_token": STOP_TOKENS[1],
        "bos_token": None,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_size,
        "chat_template": TEMPLATES[template],
    }
    make_tokenizer().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
