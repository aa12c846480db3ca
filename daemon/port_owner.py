"""Who has a port: asked of the port itself, within a second, whoever that is.

A daemon says its version, its process and the id of its run; a stranger is only called one. No
file is read for that: what a file says may be of a process that is long gone.
"""

from __future__ import annotations

import json
import socket
import time

ASK_SECONDS = 1.0
MAX_ANSWER_BYTES = 4 << 20
STRANGER = "another program"
KEYED = "a daemon of mlxd that asks for an API key"


def owner_of(address: str, port: int, seconds: float = ASK_SECONDS) -> str:
    """In words, such as "mlxd 0.1.0 (process 4242, instance 8a5c…)"; whatever happens, words."""
    try:
        said = _answer(address, port, time.monotonic() + seconds)
        found = json.loads(said.partition(b"\r\n\r\n")[2])
        if found.get("error", {}).get("code") == "invalid_api_key":
            return KEYED
        version, instance = str(found["version"])[:20], str(found["instance"])[:12]
        words = f"mlxd {version} (process {int(found['pid'])}, instance {instance})"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return STRANGER
    return words if words.isprintable() else STRANGER


def _answer(address: str, port: int, deadline: float) -> bytes:
    """All that comes until the other side closes. Raises OSError after the deadline."""
    host = f"[{address}]" if ":" in address else address
    lines = ("GET /mlxd/status HTTP/1.1", f"Host: {host}:{port}", "Connection: close")
    with socket.create_connection((address, port), _left(deadline)) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode())
        data = b""
        while len(data) < MAX_ANSWER_BYTES:
            connection.settimeout(_left(deadline))
            piece = connection.recv(65536)
            if not piece:
                break
            data += piece
        return data


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
