"""What a coding agent sends in a day: the messages, and nothing of how they travel.

The tool results are mlxd's own source files. Tools are described in the system text, and their
results are user messages: every chat template renders those, the small model's included.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import TypeAlias

Message: TypeAlias = dict[str, str]
History: TypeAlias = tuple[Message, ...]

_TOOLS = (
    {
        "name": "read_file",
        "description": "Read a file of the project and return its text.",
        "parameters": {"path": "string, relative to the project", "first_line": "integer"},
    },
    {
        "name": "search",
        "description": "Find a regular expression in the project; returns paths and lines.",
        "parameters": {"pattern": "string", "folder": "string"},
    },
    {
        "name": "edit_file",
        "description": "Replace one passage of a file by another. The passage has to be unique.",
        "parameters": {"path": "string", "old": "string", "new": "string"},
    },
    {
        "name": "run",
        "description": "Run a command in the project's folder and return what it printed.",
        "parameters": {"command": "string", "timeout_seconds": "integer"},
    },
)

_SYSTEM = """You are a careful coding agent. You work in a checkout of a Python project on the \
user's own machine and you help to understand it, to change it and to keep it in order.

How you work
- Look before you answer: read the files that a question is about, then say what they say.
- One step at a time: call one tool, wait for its result, then decide what is next.
- Keep changes small. Do not touch what the task does not name. Keep the project's style.
- Run the tests that cover what you changed, and say which ones you ran and how they ended.
- Never delete files, never rewrite history, never send anything away from this machine.
- Answer in one or two plain sentences. Name files by their path and functions by their name.

Tools, one for each line, called with a JSON object of their parameters:
"""


def opening() -> History:
    """System text with its tools, and the task."""
    tools = "\n".join(json.dumps(tool) for tool in _TOOLS)
    return (
        {"role": "system", "content": _SYSTEM + tools},
        _user("I am new to this project. Read its core with me, and explain what you find."),
    )


def answered(history: History, answer: str) -> History:
    return (*history, {"role": "assistant", "content": answer})


def asked(history: History, question: str) -> History:
    return (*history, _user(question))


def tool_result(history: History, package: str, name: str, question: str) -> History:
    """The file `name` of `package`, as it is installed here, comes back from `read_file`."""
    source = files(package).joinpath(name).read_text(encoding="utf-8")
    path = f"{package.replace('.', '/')}/{name}"
    return asked(history, f"Result of read_file {path}:\n\n{source}\n{question}")


def _user(content: str) -> Message:
    return {"role": "user", "content": content}
