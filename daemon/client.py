"""A thin client of a running daemon's admin API, for the command line.

Says at once when nobody listens: what is heavy is imported only to read an answer. Liveness is an
answer over the socket, never a pid file.
"""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from daemon.status import DaemonStatus

STATUS_PATH = "/mlxd/status"
ANSWER_SECONDS = 5.0


class NotAnswering(Exception):
    """Something listens on the port, but does not answer as a daemon of this version does."""


def fetch_status(port: int, seconds: float = ANSWER_SECONDS) -> DaemonStatus | None:
    """What the daemon on `port` says of itself; None if nothing listens there.

    Raises NotAnswering.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=seconds)
    try:
        connection.request("GET", STATUS_PATH)
        response = connection.getresponse()
        body = response.read()
    except ConnectionRefusedError:
        return None
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise NotAnswering(f"Port {port} does not answer: {reason}.") from None
    finally:
        connection.close()
    if response.status != 200:
        raise NotAnswering(f"Port {port} answers with {response.status}: is that mlxd?")
    return _parsed(body, port)


def _parsed(body: bytes, port: int) -> DaemonStatus:
    from pydantic import TypeAdapter, ValidationError

    from daemon.status import DaemonStatus

    try:
        return TypeAdapter(DaemonStatus).validate_json(body)
    except ValidationError:
        raise NotAnswering(f"Port {port} answers, but not as mlxd of this version.") from None
