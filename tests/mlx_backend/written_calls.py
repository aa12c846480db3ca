"""Calls as each family of models writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

Call: TypeAlias = tuple[str, Mapping[str, Any]]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _each(before: str, call: Callable[[Call], str], after: str = "") -> Callable[..., str]:
    return lambda calls: before + "".join(map(call, calls)) + after


def _arguments(write: Callable[[str, Any], str], call: Call) -> str:
    return "".join(write(key, value) for key, value in call[1].items())


def _tagged(head: str, argument: str, end: str) -> Callable[[Call], str]:
    def write(call: Call) -> str:
        body = _arguments(lambda key, value: argument.format(key=key, value=_text(value)), call)
        return head.format(name=call[0]) + body + end

    return write


def _dsml(call: Call) -> str:
    def argument(key: str, value: Any) -> str:
        is_string = str(isinstance(value, str)).lower()
        opening = f'<｜DSML｜parameter name="{key}" string="{is_string}">'
        return f"{opening}{_text(value)}</｜DSML｜parameter>\n"

    body = _arguments(argument, call)
    return f'<｜DSML｜invoke name="{call[0]}">\n{body}</｜DSML｜invoke>\n'


def _minicpm(call: Call) -> str:
    def argument(key: str, value: Any) -> str:
        text = _text(value)
        if isinstance(value, str) and re.search("[<&\n]", value):
            text = f"<![CDATA[{text}]]>"
        return f'<param name="{key}">{text}</param>'

    return f'<function name="{call[0]}">{_arguments(argument, call)}</function>'


def _minimax_m3(call: Call) -> str:
    mark = "]<]minimax[>["

    def element(key: str, value: Any) -> str:
        inner = _text(value)
        if isinstance(value, list):
            inner = "".join(element("item", item) for item in value)
        elif isinstance(value, dict):
            inner = "".join(map(element, value.keys(), value.values()))
        return "" if value is None else f"{mark}<{key}>{inner}{mark}</{key}>"

    return f'{mark}<invoke name="{call[0]}">{_arguments(element, call)}{mark}</invoke>\n'


def _kimi_k3(call: Call) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}

    def argument(key: str, value: Any) -> str:
        kind = kinds.get(type(value), "object")
        return (
            f'<|open|>argument key="{key}" type="{kind}"<|sep|>'
            f"{_text(value)}<|close|>argument<|sep|>"
        )

    opening = f'<|open|>call tool="{call[0]}" index="1"<|sep|>'
    return f"{opening}{_arguments(argument, call)}<|close|>call<|sep|>"


def _gemma(opening: str, closing: str, quote: str) -> Callable[[Call], str]:
    def value_of(value: Any) -> str:
        if isinstance(value, str):
            return f"{quote}{value}{quote}"
        if isinstance(value, list):
            return f"[{','.join(map(value_of, value))}]"
        if isinstance(value, dict):
            return "{" + ",".join(f"{k}:{value_of(v)}" for k, v in value.items()) + "}"
        return _json(value)

    def write(call: Call) -> str:
        members = ",".join(f"{key}:{value_of(value)}" for key, value in call[1].items())
        return f"{opening}call:{call[0]}{{{members}}}{closing}"

    return write


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def _hermes(call: Call) -> str:
    return f'<tool_call>\n{{"name": "{call[0]}", "arguments": {_json(call[1])}}}\n</tool_call>\n'


def _in_list(before: str, calls: Iterable[str], after: str) -> str:
    return f"{before}[{', '.join(calls)}]{after}"


def _objects(calls: Sequence[Call], key: str = "arguments") -> list[str]:
    return [f'{{"name": "{name}", "{key}": {_json(arguments)}}}' for name, arguments in calls]


_INVOKE = _tagged(
    '<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>\n"
)
_H = ":opensource>"

WRITERS: dict[str, Callable[[Sequence[Call]], str]] = {
    "qwen-coder": _each(
        "",
        _tagged(
            "<tool_call>\n<function={name}>\n",
            "<parameter={key}>\n{value}\n</parameter>\n",
            "</function>\n</tool_call>\n",
        ),
    ),
    "seed": _each(
        "",
        _tagged(
            "<seed:tool_call>\n<function={name}>\n",
            "<parameter={key}>{value}</parameter>\n",
            "</function>\n</seed:tool_call>\n",
        ),
    ),
    "glm": _each(
        "",
        _tagged(
            "<tool_call>{name}\n",
            "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n",
            "</tool_call>\n",
        ),
    ),
    "longcat": _each(
        "",
        _tagged(
            "<longcat_tool_call>{name}\n",
            "<longcat_arg_key>{key}</longcat_arg_key>\n"
            "<longcat_arg_value>{value}</longcat_arg_value>\n",
            "</longcat_tool_call>\n",
        ),
    ),
    "hunyuan": _each(
        f"<tool_calls{_H}\n",
        _tagged(
            f"<tool_call{_H}{{name}}<tool_sep{_H}\n",
            f"<arg_key{_H}{{key}}</arg_key{_H}\n<arg_value{_H}{{value}}</arg_value{_H}\n",
            f"</tool_call{_H}\n",
        ),
        f"</tool_calls{_H}",
    ),
    "minimax": _each("<minimax:tool_call>\n", _INVOKE, "</minimax:tool_call>"),
    "minimax-m3": _each("]<]minimax[>[<tool_call>\n", _minimax_m3, "]<]minimax[>[</tool_call>"),
    "muse-spark": _each(
        "",
        _tagged(
            '<atem:function_calls>\n<atem:invoke name="{name}">\n',
            '<atem:parameter name="{key}">{value}</atem:parameter>\n',
            "</atem:invoke>\n</atem:function_calls>",
        ),
    ),
    "dsml": _each("\n\n<｜DSML｜function_calls>\n", _dsml, "</｜DSML｜function_calls>"),
    "dsml-4": _each("\n\n<｜DSML｜tool_calls>\n", _dsml, "</｜DSML｜tool_calls>"),
    "minicpm": _each("", _minicpm),
    "kimi-k3": _each("<|open|>tools<|sep|>", _kimi_k3, "<|close|>tools<|sep|>"),
    "kimi": _each(
        "<|tool_calls_section_begin|>",
        lambda call: (
            f"<|tool_call_begin|>functions.{call[0]}:0<|tool_call_argument_begin|>"
            f"{_json(call[1])}<|tool_call_end|>"
        ),
        "<|tool_calls_section_end|>",
    ),
    "deepseek": _each(
        "<｜tool▁calls▁begin｜>",
        lambda call: (
            f"<｜tool▁call▁begin｜>{call[0]}<｜tool▁sep｜>{_json(call[1])}<｜tool▁call▁end｜>"
        ),
        "<｜tool▁calls▁end｜>",
    ),
    "solar": _each(
        "<|tool_calls|>",
        lambda call: (
            f"<|tool_call:begin|>abc<|tool_call:name|>{call[0]}<|tool_call:args|>"
            f"{_json(call[1])}<|tool_call:end|>"
        ),
    ),
    "gemma-4": _each("", _gemma("<|tool_call>", "<tool_call|>", '<|"|>')),
    "function-gemma": _each("", _gemma("<start_function_call>", "<end_function_call>", "<escape>")),
    "tool-code": lambda calls: "```tool_code\n" + "\n".join(map(_python, calls)) + "\n```",
    "pythonic": lambda calls: _in_list(
        "<|tool_call_start|>", map(_python, calls), "<|tool_call_end|>"
    ),
    "mistral": lambda calls: _in_list("[TOOL_CALLS]", _objects(calls), ""),
    "hermes": _each("", _hermes),
    "granite": lambda calls: _in_list("<|tool_call|>", _objects(calls), ""),
    "command": lambda calls: _in_list(
        "<|START_ACTION|>",
        (
            f'{{"tool_call_id": "{i}", "tool_name": "{name}", "parameters": {_json(arguments)}}}'
            for i, (name, arguments) in enumerate(calls)
        ),
        "<|END_ACTION|>",
    ),
    "llama": lambda calls: "; ".join(_objects(calls, "parameters")),
}
"""By the name of the format: several calls, in the form that the family's template has them."""
