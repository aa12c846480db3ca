# ruff: noqa: E501
"""Chat templates in the form of the families that coding agents meet, and tokenizers for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
)

from mlx_backend.prompts import MlxPromptEncoder, Vocabulary
from mlx_backend.templates import JinjaTemplate
from mlx_backend.tiny_tokenizer import MERGES, TEMPLATES

QWEN_LIKE = """\
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}
{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(searching=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.searching and message.role == 'user' and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set ns.searching = false %}{%- set ns.last_query = index %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}
{%- set content = message.content %}
{%- set reasoning = '' %}
{%- if message.reasoning_content is string %}
{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
{{- '<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
{%- else %}
{{- content }}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or content %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{%- if call.function.arguments is string %}{{- call.function.arguments }}
{%- else %}{{- call.function.arguments | tojson }}{%- endif %}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""

LLAMA_LIKE = """\
{{- bos_token }}
{%- set date = strftime_now('%d %b %Y') %}
{%- if messages[0]['role'] == 'system' %}
{%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system = '' %}{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday: ' + date + '\\n\\n' }}
{%- for tool in tools or [] %}{{- tool | tojson(indent=4) }}{{- '\\n\\n' }}{%- endfor %}
{{- system }}{{- '<|eot_id|>' }}
{%- for message in messages %}
{%- if 'tool_calls' in message %}
{%- if message.tool_calls|length != 1 %}
{{- raise_exception('This model only supports single tool-calls at once!') }}
{%- endif %}
{%- set call = message.tool_calls[0].function %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + call.name + '", "parameters": ' }}
{{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' }}
{{- message.content | tojson }}{{- '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
{{- message['content'] | trim }}{{- '<|eot_id|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA_LIKE = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}
{{- raise_exception('System role not supported') }}
{%- endif %}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}
"""

MISTRAL_LIKE = """\
{%- set system = '' %}
{%- if messages[0].role == 'system' %}
{%- set system = messages[0].content %}{%- set messages = messages[1:] %}
{%- endif %}
{%- set ns = namespace(turn=0) %}
{%- for message in messages %}
{%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
{%- if (message.role == 'user') != (ns.turn % 2 == 0) %}
{{- raise_exception('roles must alternate') }}
{%- endif %}
{%- set ns.turn = ns.turn + 1 %}
{%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and message == (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}{{- '[AVAILABLE_TOOLS]' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{%- endif %}
{{- '[INST]' + ((system + '\\n\\n') if loop.first and system else '') + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' and message.tool_calls %}
{{- '[TOOL_CALLS][' }}
{%- for call in message.tool_calls %}
{%- if call.id|length != 9 %}{{- raise_exception('Tool call IDs should be 9 letters') }}{%- endif %}
{{- '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + ', "id": "' + call.id + '"}' }}
{%- if not loop.last %}{{- ', ' }}{%- endif %}
{%- endfor %}
{{- ']' + eos_token }}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]{"content": ' + message.content + '}[/TOOL_RESULTS]' }}
{%- else %}
{{- raise_exception('Only user, assistant and tool roles are supported') }}
{%- endif %}
{%- endfor %}
"""

HARMONY_LIKE = """\
{{- '<|start|>system<|message|>You are ChatGPT.<|end|>' }}
{%- if messages[0].role == 'system' %}
{{- '<|start|>developer<|message|>' + messages[0].content + '<|end|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '<|start|>user<|message|>' + message.content + '<|end|>' }}
{%- elif message.role == 'assistant' %}
{%- set later = namespace(final=false) %}
{%- for other in messages[loop.index:] %}
{%- if other.role == 'assistant' and not other.tool_calls %}{%- set later.final = true %}{%- endif %}
{%- endfor %}
{%- if message.tool_calls %}
{%- if message.thinking and message.content %}{{- raise_exception('Cannot pass both content and thinking with tool calls') }}{%- endif %}
{%- if message.thinking and not later.final %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{%- for call in message.tool_calls %}
{{- '<|start|>assistant to=functions.' + call.function.name + '<|channel|>commentary<|message|>' }}
{{- call.function.arguments | tojson }}{{- '<|call|>' }}
{%- endfor %}
{%- else %}
{%- if loop.last and not add_generation_prompt and message.thinking %}
{{- '<|start|>assistant<|channel|>analysis<|message|>' + message.thinking + '<|end|>' }}
{%- endif %}
{{- '<|start|>assistant<|channel|>final<|message|>' + message.content }}
{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}
{%- endif %}
{%- elif message.role == 'tool' %}
{{- '<|start|>functions.x to=assistant<|channel|>commentary<|message|>' }}
{{- message.content | tojson }}{{- '<|end|>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{%- endif %}
"""

CHATML_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and whether its tokenizer puts the first one before text."""

    source: str
    special: tuple[str, ...]
    adds_bos: bool = False

    @property
    def names(self) -> dict[str, str]:
        return {"bos_token": self.special[0], "eos_token": self.special[-1]}


FAMILIES = {
    "chatml": Family(TEMPLATES["plain"], CHATML_TOKENS),
    "qwen": Family(QWEN_LIKE, CHATML_TOKENS),
    "empty thinking": Family(TEMPLATES["empty-thinking"], CHATML_TOKENS),
    "llama": Family(
        LLAMA_LIKE,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        adds_bos=True,
    ),
    "gemma": Family(GEMMA_LIKE, ("<bos>", "<start_of_turn>", "<end_of_turn>"), adds_bos=True),
    "mistral": Family(
        MISTRAL_LIKE,
        (
            "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
            "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "</s>",
        ),
        adds_bos=True,
    ),
    "strict": Family(TEMPLATES["strict"], CHATML_TOKENS),
    "harmony": Family(
        HARMONY_LIKE,
        ("<|start|>", "<|message|>", "<|channel|>", "<|call|>", "<|end|>", "<|return|>"),
    ),
}  # fmt: skip


@cache
def byte_level(special: tuple[str, ...] = CHATML_TOKENS) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate(alphabet)}
    merges = []
    for merge in MERGES:
        left, right = merge.split(" ")
        if left in vocabulary and right in vocabulary:
            vocabulary.setdefault(left + right, len(vocabulary))
            merges.append((left, right))
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return with_tokens(tokenizer, special)


@cache
def sentencepiece(scheme: str) -> Tokenizer:
    """Blanks as ▁, one put in front of text: `first` of the whole, `legacy` of each stretch."""
    characters = [chr(i) for i in range(33, 127)] + ["▁"]
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary |= {character: 256 + i for i, character in enumerate(characters)}
    for merged in ("▁a", "he", "▁H"):
        vocabulary[merged] = len(vocabulary)
    merges = [("▁", "a"), ("h", "e"), ("▁", "H")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True))
    if scheme == "legacy":
        tokenizer.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return with_tokens(tokenizer, CHATML_TOKENS)


def with_tokens(tokenizer: Tokenizer, special: tuple[str, ...]) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in MARKUP_TOKENS])
    return tokenizer


def encoder_of(
    family: str, now: Callable[[], datetime] = lambda: datetime(2024, 5, 17, 12, 30)
) -> MlxPromptEncoder:
    """A fresh encoder, with nothing remembered."""
    chosen = FAMILIES[family]
    tokenizer = byte_level(chosen.special)
    bos = tokenizer.token_to_id(chosen.special[0]) if chosen.adds_bos else None
    template = JinjaTemplate(chosen.source, chosen.names)
    return MlxPromptEncoder(tokenizer, template, Vocabulary(tokenizer.get_vocab_size(), bos), now)
