"""Answers that come back to another process than the one that gave them: nothing is read twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from mlx_backend.tiny_models import write_folder
from mlx_backend.tiny_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, token_id
from tests.e2e.accounts import Account, serving
from tests.e2e.processes import Daemon
from tests.fakes import filler

PLAIN = {str(token_id(text)): -100 for text in (*CONTROL_TOKENS[:2], *MARKUP_TOKENS)}
NEVER_THINKS = {str(token_id("<think>")): -100}
SCHEMA = {
    "type": "object",
    "properties": {"is_safe": {"type": "boolean"}, "size": {"enum": ["small", "large"]}},
    "required": ["is_safe", "size"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "judge", "parameters": SCHEMA}}]
NEW_TOKENS = 64  # a question or a result, the end of a turn, the beginning of the next
DRAWN = {"temperature": 1, "seed": 1, "tools": TOOLS}
Message = dict[str, Any]


def asked(daemon: Daemon, messages: list[Message], **fields: Any) -> tuple[Message, dict[str, Any]]:
    answer = daemon.chat(messages=messages, **DRAWN, **fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    return body["choices"][0]["message"], body["usage"]


def called(daemon: Daemon, messages: list[Message]) -> tuple[Message, dict[str, Any]]:
    return asked(daemon, messages, max_tokens=400, logit_bias=NEVER_THINKS, tool_choice="required")


def told(daemon: Daemon, messages: list[Message]) -> tuple[Message, dict[str, Any]]:
    return asked(daemon, messages, max_tokens=40, logit_bias=PLAIN, tool_choice="none")


def rewritten(message: Message) -> list[Message]:
    """Calls as a client sends them back that writes JSON its own way, and their results."""
    calls, results = [], []
    for call in message["tool_calls"]:
        turned = dict(reversed(json.loads(call["function"]["arguments"]).items()))
        function = {"name": "judge", "arguments": json.dumps(turned, indent=2)}
        calls.append({"id": call["id"], "type": "function", "function": function})
        results.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
    return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]


def unload(daemon: Daemon, home: Path) -> int:
    """Have the weights out and the state on disk; how many files that are."""
    [token] = home.rglob("private/token")
    headers = {"authorization": f"Bearer {token.read_text(encoding='ascii').strip()}"}
    assert daemon.http.post("/mlxd/models/unload", headers=headers).status_code == 200
    daemon.wait_until(lambda engine: engine["model"]["state"] == "unloaded")
    return written(daemon, files=0)


def written(daemon: Daemon, files: int) -> int:
    """Wait until more than so many files were written, and none is on its way."""

    def is_done(engine: dict[str, Any]) -> bool:
        disk = engine["disk"]
        return disk["written_files"] > files and not disk["pending_bytes"]

    return int(daemon.wait_until(is_done)["disk"]["written_files"])


def end(daemon: Daemon, how: signal.Signals, files: int) -> None:
    """Stop it, or kill it once all is written; `files` were before its last answer."""
    if how is signal.SIGKILL:
        written(daemon, files)
        daemon.process.kill()
    else:
        assert daemon.stop() == 0
        assert "Traceback" not in daemon.process.stderr.read()


@pytest.mark.parametrize(
    ("kind", "how"), [("tiny-hybrid", signal.SIGTERM), ("tiny-full", signal.SIGKILL)]
)
def test_what_was_sampled_is_not_read_again_however_it_comes_back(
    tmp_path: Path, kind: str, how: signal.Signals
) -> None:
    """A call in other bytes after an unload, a text without its blanks after a restart."""
    account = Account(tmp_path)
    folder = write_folder(kind, tmp_path / kind)
    arguments = ("--model", str(folder), "--disk-cache-folder", str(tmp_path / "disk"))
    limits = ("--disk-cache-bytes", "100MB", "--disk-cache-free-bytes", "0")
    idle = ("--disk-cache-idle-seconds", "1")
    messages: list[Message] = [
        {"role": "system", "content": filler(300, 1)},
        {"role": "user", "content": "first"},
    ]
    with serving(account, *arguments, *limits, *idle) as daemon:
        message, usage = called(daemon, messages)
        first = usage["prompt_tokens"] + usage["completion_tokens"]
        files = unload(daemon, tmp_path)
        messages += rewritten(message)
        message, usage = told(daemon, messages)
        assert usage["prompt_tokens_details"]["cached_tokens"] >= first - 2
        second = usage["prompt_tokens"] + usage["completion_tokens"]
        end(daemon, how, files)
    messages += [
        {"role": "assistant", "content": message["content"].strip()},
        {"role": "user", "content": "second"},
    ]
    with serving(account, *arguments, *limits, *idle) as daemon:
        _, usage = told(daemon, messages)
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        assert reused >= second - 2
        assert usage["prompt_tokens"] - reused <= NEW_TOKENS
        assert daemon.http.get("/mlxd/requests").json()["data"][-1]["from_disk"] == reused
