"""What an agent's user writes down so that it asks this daemon: the README's lines, with the port.

A test compares them with the README's.
"""

from __future__ import annotations

CLAUDE_CODE = """\
ANTHROPIC_BASE_URL=http://127.0.0.1:8642 ANTHROPIC_AUTH_TOKEN=none claude --model default
"""

CODEX = """\
model = "default"
model_provider = "mlxd"

[model_providers.mlxd]
name = "mlxd"
base_url = "http://127.0.0.1:8642/v1"
wire_api = "responses"
"""

OPENCODE = """\
{
  "provider": {
    "mlxd": {
      "npm": "@ai-sdk/openai-compatible",
      "options": { "baseURL": "http://127.0.0.1:8642/v1" },
      "models": { "default": {} }
    }
  }
}
"""

PI = """\
{
  "providers": {
    "mlxd": {
      "baseUrl": "http://127.0.0.1:8642/v1",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [{ "id": "default", "reasoning": true }]
    }
  }
}
"""

QWEN_CODE = """\
OPENAI_BASE_URL=http://127.0.0.1:8642/v1 OPENAI_API_KEY=none OPENAI_MODEL=default \\
  qwen --auth-type openai
"""

AIDER = """\
OPENAI_API_BASE=http://127.0.0.1:8642/v1 OPENAI_API_KEY=none aider --model openai/default
"""

_LINES = {
    "Claude Code": CLAUDE_CODE,
    "Codex": CODEX,
    "opencode": OPENCODE,
    "pi": PI,
    "Qwen Code": QWEN_CODE,
    "aider": AIDER,
}
_PORT_IN_LINES = ":8642"


def agent_lines(port: int) -> dict[str, str]:
    """By the agent's name."""
    return {name: lines.replace(_PORT_IN_LINES, f":{port}") for name, lines in _LINES.items()}
