"""No text of prompts or answers in the log, nor on the terminal, whatever is asked or fails."""

import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.api.route_table import methods_and_paths
from tests.api.wires import CHAT, WIRES, Wire
from tests.e2e.processes import BOUND_SECONDS, Daemon, request_bytes, running

SECRET = "sesame"
SAID = f"CODE-{SECRET}"
"""What the scripted model repeats of the last prompt that has it."""

CALL = f'{SAID}<tool_call>{{"name":"{SECRET}","arguments":{{{SECRET}</tool_call>'
"""A call that cannot be read, and is warned of."""

LONG = "".join(f"{SECRET}{number}" for number in range(150))
FAULTS = {"reads": 1, "reads_before": 3, "steps": 1, "steps_before": 90, "restores": 1}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("MLXD_", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def bodies(wire: Wire) -> Iterator[dict[str, Any]]:
    """Answered, warned of, and refused for every reason that a dialect has."""
    for stream in (False, True):
        yield wire.body(SAID, stream=stream, session_id="s")
        yield wire.body(CALL, stream=stream)
        if wire.has_tools:
            yield wire.body(CALL, stream=stream, **wire.tools("ls"))
    yield wire.body(SAID, **{SECRET: SECRET})
    yield wire.body(f"{SECRET} " * 40_000)
    yield wire.body({SECRET: SECRET})
    for field in ("model", wire.prompt_field, "tools", "stop"):
        yield wire.body(SAID, **{field: [{SECRET: SECRET, "type": SECRET}]})
    if wire.has_tools:
        yield wire.body(SAID, **wire.tools("ls"), **wire.choice(SECRET))


def ask_everything(daemon: Daemon, token: str) -> int:
    """How many prompts were sent."""
    asked = 0
    for wire in WIRES:
        for each in bodies(wire):
            daemon.http.post(wire.path, json=each)
            asked += 1
        for content in (f'{{"{SECRET}": ', f'{{"\\ud800{SECRET}": 1}}'):
            headers = {"content-type": "application/json"}
            daemon.http.post(wire.path, content=content, headers=headers)
        daemon.http.post(wire.path, content=SECRET, headers={"content-type": "text/plain"})
    for method, path in methods_and_paths(SECRET):
        if path != "/mlxd/stop":
            headers = {"authorization": f"Bearer {token}"}
            daemon.http.request(method, f"{path}?id={SECRET}&model={SECRET}", headers=headers)
    daemon.http.get(f"/{SECRET}", headers={"origin": f"https://{SECRET}"})
    return asked


def leave_in_the_middle(daemon: Daemon) -> None:
    for stream in (False, True):
        for wire in WIRES:
            body = wire.body(f"{stream} {SAID}{LONG}", stream=stream, **wire.limit(4_000))
            left = daemon.socket_with(body, wire.path)
            daemon.wait_for_requests(running=1)
            left.close()
            daemon.wait_for_requests()


def speak_nonsense(daemon: Daemon) -> None:
    whole = request_bytes(daemon.port, CHAT.path, json.dumps({"messages": SECRET}).encode())
    for data in (SECRET.encode() + b"\r\n\r\n", whole.replace(b"HTTP/1.1", SECRET.encode())):
        with socket.create_connection(("127.0.0.1", daemon.port), BOUND_SECONDS) as connection:
            connection.sendall(data)
            assert connection.recv(65536).startswith(b"HTTP/1.1 400 ")


def test_no_text_of_prompts_or_answers_is_logged(home: Path) -> None:
    log = home / "logs" / "mlxd.log"
    script = {"reply": "echo", "step_seconds": 0.001, "takes_constraints": True}
    options = {"log": str(log), "has_token": True, "script": script, "faults": FAULTS}
    settings = {"max_body_bytes": 200_000, "disk_cache_idle_seconds": 1, "disk_cache_free_bytes": 0}
    with running(**options, settings=settings, disk=str(home / "read")) as daemon:
        (token_file,) = home.rglob("token")
        asked = ask_everything(daemon, token_file.read_text().strip())
        leave_in_the_middle(daemon)
        speak_nonsense(daemon)
        answer: httpx2.Response = daemon.chat(SAID)
        assert SAID in answer.text
        assert daemon.stop() == 0
        assert daemon.process.stderr is not None
        written = [log.read_text(), daemon.process.stderr.read()]
    assert list((home / "read").rglob("*.safetensors"))
    for each in written:
        assert SECRET not in each, re.findall(f".*{SECRET}.*", each)[:3]
        for outcome, least in (("done", asked // 4), ("cancelled", len(WIRES)), ("failed", 1)):
            assert len(re.findall(f"request req_.* is {outcome}", each)) >= least, outcome
        assert "Invalid HTTP request" in each
