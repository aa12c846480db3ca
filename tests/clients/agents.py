"""The agents: what is installed, how it is started without a terminal, what its tools are called.

How an agent is pointed at the daemon is not here: that comes from the README.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.clients.agent import SESSION, TASK, Agent, Delegate, Session, Write, command_first
from tests.clients.installed import Package, npm, pip
from tests.clients.script import RECALLED, Call, Step

HELPER = "You are a helper. You write files. Do what your task says and report."


def _pi(api: str, path: str) -> Agent:
    def edit(text: str) -> str:
        return _without_v1(text, path).replace("openai-completions", api)

    return Agent(
        name=f"pi-{path.rsplit('/', 1)[-1]}",
        heading="pi",
        command=lambda: npm(Package("@mariozechner/pi-coding-agent", "0.73.1", "pi")),
        path=path,
        arguments=("-p", TASK),
        resumed=("--continue", "-p", TASK),
        write=lambda file, text: Call("write", {"path": str(file), "content": text}),
        environment={"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        edit=edit,
        is_in_ci=True,
        session=Session.OWN if path == "/v1/responses" else Session.NAMELESS,
    )


PI = (
    _pi("openai-completions", "/v1/chat/completions"),
    _pi("openai-responses", "/v1/responses"),
    _pi("anthropic-messages", "/v1/messages"),
)

CODEX = Agent(
    name="codex",
    heading="Codex",
    command=lambda: npm(Package("@openai/codex", "0.171.0", "codex")),
    path="/v1/responses",
    arguments=("exec", "--dangerously-bypass-approvals-and-sandbox", TASK),
    resumed=("exec", "--dangerously-bypass-approvals-and-sandbox", "resume", "--last", TASK),
    write=lambda file, text: shell_call("exec_command", "cmd", file, text),
    delegate=lambda task: [
        *asking("spawn_agent", {"message": task}),
        Step(
            calls=[Call("wait_agent", {"targets": [RECALLED], "timeout_ms": 60000})],
            recall=r'"agent_id": *"([^"]+)"',
        ),
    ],
    shared=0.8,
    is_in_ci=True,
    session=Session.OWN,
)


def _claude(
    name: str, environment: Mapping[str, str], write: Write, delegate: Delegate | None = None
) -> Agent:
    return Agent(
        name=name,
        heading="Claude Code",
        command=lambda: npm(Package("@anthropic-ai/claude-code", "2.1.332", "claude")),
        path="/v1/messages",
        arguments=("--dangerously-skip-permissions", "-p", TASK),
        resumed=("--dangerously-skip-permissions", "--continue", "-p", TASK),
        write=write,
        delegate=delegate,
        environment={
            "IS_SANDBOX": "1",
            "DISABLE_TELEMETRY": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_AUTOUPDATER": "1",
            **environment,
        },
        session=Session.OWN,
    )


def _answer_claude(home: Path, project: Path) -> None:
    """That it has been introduced, and may do what it wants in the project."""
    told = {
        "hasCompletedOnboarding": True,
        "bypassPermissionsModeAccepted": True,
        "projects": {str(project): {"hasTrustDialogAccepted": True}},
    }
    (home / ".claude.json").write_text(json.dumps(told), encoding="utf-8")


CLAUDE_CODE = _claude(
    "claude-code",
    {},
    lambda file, text: Call("Write", {"file_path": str(file), "content": text}),
    lambda task: asking("Agent", {"description": "a helper", "prompt": task}),
)

CLAUDE = (
    _claude(
        "claude-code-simple",
        {"CLAUDE_CODE_SIMPLE": "1"},
        lambda file, text: shell_call("Bash", "command", file, text),
    ),
    CLAUDE_CODE,
    replace(
        CLAUDE_CODE,
        name="claude-code-terminal",
        arguments=("--dangerously-skip-permissions",),
        resumed=("--dangerously-skip-permissions", "--continue"),
        typed_when="bypass",
        settle=_answer_claude,
        asks_for_a_title=True,
    ),
)

OPENCODE = Agent(
    name="opencode",
    heading="opencode",
    command=lambda: npm(Package("opencode-ai", "1.18.33", "opencode")),
    path="/v1/chat/completions",
    environment={
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    },
    arguments=("run", TASK),
    resumed=("run", "--continue", TASK),
    compose=command_first,
    write=lambda file, text: Call("write", {"filePath": str(file), "content": text}),
    delegate=lambda task: asking(
        "task", {"description": "a helper", "prompt": task, "subagent_type": "general"}
    ),
    asks_for_a_title=True,
    shared=0.8,
    is_in_ci=True,
    session=Session.OWN,
)

QWEN = Agent(
    name="qwen-code",
    heading="Qwen Code",
    command=lambda: npm(Package("@qwen-code/qwen-code", "0.24.4", "qwen")),
    path="/v1/chat/completions",
    arguments=("--yolo", "-p", TASK),
    resumed=("--yolo", "--continue", "-p", TASK),
    write=lambda file, text: Call("write_file", {"file_path": str(file), "content": text}),
    delegate=lambda task: asking(
        "agent", {"description": "a helper", "prompt": task, "subagent_type": "general-purpose"}
    ),
    loses_prefix_on_resume=True,
)


def _copilot(path: str, **chosen: str) -> Agent:
    return Agent(
        name=f"copilot-{path.rsplit('/', 1)[-1]}",
        heading="Copilot CLI",
        command=lambda: npm(Package("@github/copilot", "1.0.102", "copilot")),
        path=path,
        arguments=("--allow-all", "-p", TASK),
        resumed=("--allow-all", "--continue", "-p", TASK),
        write=lambda file, text: Call("create", {"path": str(file), "file_text": text}),
        delegate=lambda task: asking(
            "task",
            {
                "description": "a helper",
                "prompt": task,
                "agent_type": "general-purpose",
                "name": "helper",
            },
        ),
        environment=chosen,
        session=Session.FAMILY if path == "/v1/responses" else Session.NAMELESS,
        edit=lambda text: _without_v1(text, path),
    )


COPILOT = (
    _copilot("/v1/chat/completions"),
    _copilot("/v1/responses", COPILOT_PROVIDER_WIRE_API="responses"),
    _copilot("/v1/messages", COPILOT_PROVIDER_TYPE="anthropic"),
)

CLINE = Agent(
    name="cline",
    heading="Cline",
    command=lambda: npm(Package("cline", "3.0.65", "cline")),
    path="/v1/chat/completions",
    arguments=("--json", TASK),
    resumed=("--id", SESSION),
    typed_when="Ask anything...",
    write=lambda file, text: Call("editor", {"path": str(file), "new_text": text}),
    delegate=lambda task: asking("spawn_agent", {"systemPrompt": HELPER, "task": task}),
    last_session=lambda home, project: _newest(home / ".cline" / "data" / "sessions").name,
)


def _mlx_code(api: str, path: str) -> Agent:
    def compose(flags: list[str], options: list[str]) -> list[str]:
        return [api if word == "claude" else word for word in flags] + options

    return Agent(
        name=f"mlx-code-{path.rsplit('/', 1)[-1]}",
        heading="mlx-code",
        command=lambda: pip(Package("mlx-code", "0.0.42", ""), (3, 13)),
        path=path,
        arguments=("--ui", "bare", "-p", TASK),
        resumed=("--ui", "bare", "--resume", SESSION, "-p", TASK),
        write=lambda file, text: Call("Write", {"path": file.name, "content": text}),
        delegate=lambda task: asking("Agent", {"task": task, "tools": ["Write"]}),
        last_session=lambda home, project: _newest_commit(project),
        session=Session.PROCESS,
        read=lambda file: _git(file.parent, "show", f"{_newest_commit(file.parent)}:{file.name}"),
        compose=compose,
    )


MLX_CODE = (
    _mlx_code("claude", "/v1/messages"),
    _mlx_code("codex", "/v1/responses"),
    _mlx_code("noapi", "/v1/chat/completions"),
)

AGENTS = (*PI, CODEX, *CLAUDE, OPENCODE, QWEN, *COPILOT, CLINE, *MLX_CODE)


def _without_v1(text: str, path: str) -> str:
    """Clients of the messages API add the version to the base URL by themselves."""
    return text.replace("/v1", "") if path == "/v1/messages" else text


def asking(tool: str, arguments: Mapping[str, Any]) -> list[Step]:
    return [Step("A helper does it.", [Call(tool, arguments)])]


def _newest(folder: Path) -> Path:
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime)


def _newest_commit(project: Path) -> str:
    """mlx-code keeps what its agents did, and what was said, in commits on branches of its own."""
    return _git(project, "rev-list", "--all", "--date-order", "--max-count=1").strip()


def _git(project: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=project, check=True, capture_output=True, text=True)
    return done.stdout


def shell_call(tool: str, argument: str, file: Path, text: str) -> Call:
    """A call of a shell tool that writes a file."""
    return Call(tool, {argument: f"cat > {file} <<'END_OF_FILE'\n{text}END_OF_FILE"})
