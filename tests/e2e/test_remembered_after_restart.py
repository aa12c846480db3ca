"""Answers that come back to another process than the one that gave them: nothing is read twice."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlx_backend.tiny_models import write_folder
from mlx_backend.tiny_tokenizer import CONTROL_TOKENS, MARKUP_TOKENS, token_id
from tests.e2e.accounts import Account, serving
from tests.e2e.processes import BOUND_SECONDS, Daemon
from tests.fakes import filler

PLAIN = {str(token_id(text)): -100 for text in (*CONTROL_TOKENS[:2], *MARKUP_TOKENS)}
LETTERS = {str(token_id(letter)): 100 for letter in "he"}
"""Nothing else is said, letter by letter, as no tokenizer would have it."""
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


@contextmanager
def living(home: Path, kind: str) -> Iterator[Daemon]:
    """One life of a daemon in its home; a model is made there the first time."""
    folder = home / kind
    if not folder.exists():
        write_folder(kind, folder)
    limits = ("--disk-cache-bytes", "100MB", "--disk-cache-free-bytes", "0")
    times = ("--disk-cache-idle-seconds", "1", "--shutdown-grace-seconds", "0")
    model = ("--model", str(folder), "--disk-cache-folder", str(home / "disk"))
    with serving(Account(home), *model, *limits, *times) as daemon:
        yield daemon


def test_what_was_sampled_is_not_read_again_however_it_comes_back(tmp_path: Path) -> None:
    """A call in other bytes after an unload, a text without its blanks after kill -9."""
    messages: list[Message] = [
        {"role": "system", "content": filler(300, 1)},
        {"role": "user", "content": "first"},
    ]
    with living(tmp_path, "tiny-hybrid") as daemon:
        message, usage = called(daemon, messages)
        first = usage["prompt_tokens"] + usage["completion_tokens"]
        files = unload(daemon, tmp_path)
        messages += rewritten(message)
        message, usage = told(daemon, messages)
        assert usage["prompt_tokens_details"]["cached_tokens"] >= first - 2
        second = usage["prompt_tokens"] + usage["completion_tokens"]
        written(daemon, files)
        daemon.process.kill()
    messages += [
        {"role": "assistant", "content": message["content"].strip()},
        {"role": "user", "content": "second"},
    ]
    with living(tmp_path, "tiny-hybrid") as daemon:
        _, usage = told(daemon, messages)
        reused = usage["prompt_tokens_details"]["cached_tokens"]
        assert reused >= second - 2
        assert usage["prompt_tokens"] - reused <= NEW_TOKENS
        assert daemon.http.get("/mlxd/requests").json()["data"][-1]["from_disk"] == reused


def test_what_was_seen_of_an_answer_as_the_daemon_was_stopped_is_not_read_again(
    tmp_path: Path,
) -> None:
    messages: list[Message] = [{"role": "user", "content": filler(300, 1)}]
    with living(tmp_path, "tiny-full") as daemon:
        seen, prompt = "", 0
        letters = {"logit_bias": LETTERS, "frequency_penalty": 2, "temperature": 1, "seed": 1}
        body = {"messages": messages, "max_tokens": 60_000, "stream": True, **letters}
        with daemon.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            for line in answer.iter_lines():
                seen += text_in(line)
                if len(seen) > 40 and not prompt:
                    prompt = daemon.engine()["running"][0]["prompt"]
                    daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(BOUND_SECONDS) == 0
        assert "Traceback" not in daemon.process.stderr.read()
    messages += [{"role": "assistant", "content": seen}, {"role": "user", "content": "go on"}]
    with living(tmp_path, "tiny-full") as daemon:
        body = {"messages": messages, "max_tokens": 1}
        usage = daemon.http.post("/v1/chat/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] >= prompt + len(seen) - 2


def text_in(line: str) -> str:
    """The text of an event, if it is one with text."""
    if not line.startswith("data: {"):
        return ""
    choices = json.loads(line.removeprefix("data: ")).get("choices") or [{}]
    return choices[0].get("delta", {}).get("content") or ""
