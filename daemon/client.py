"""A thin client of a running daemon's admin API, for the command line.

Says at once when nobody listens: what is heavy is imported only to read an answer. Liveness is an
answer over the socket, never a pid file. The daemon's token is sent where a route asks for it and
nowhere else: whoever listens on the port could keep it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, urlencode

from daemon import __version__
from daemon.errors import CommandFailed, NotAnswering, NotRunning, Refused
from daemon.own_token import read_token

if TYPE_CHECKING:
    from daemon.disk_status import DiskCheck, DiskContents
    from daemon.status import (
        CacheCheck,
        CacheContents,
        CacheStatus,
        DaemonStatus,
        ListedModel,
        ModelList,
        RequestStatus,
        SessionList,
        SessionStatus,
    )

STATUS_SECONDS = 5.0
"""The status never waits for the model."""

LOAD_SECONDS = 660.0
"""More than the daemon itself waits for a model."""

ANSWER_SECONDS = 60.0
"""Other answers come from the engine's thread, after the chunk that it is in."""

CHECK_SECONDS = 3600.0
"""Every file is read, and a disk may hold many."""

UNAUTHORIZED = 401

Value = TypeVar("Value")


class Client:
    """Asks the daemon on `port` of this machine. `token_file` holds its own token.

    Every method raises NotRunning if nothing listens there, NotAnswering if it is no daemon of
    this version, and Refused with the daemon's own words.
    """

    def __init__(self, port: int, token_file: Path | None = None) -> None:
        self._port = port
        self._token_file = token_file

    def status(self, seconds: float = STATUS_SECONDS) -> DaemonStatus:
        body = self._answer("GET", "/mlxd/status", seconds)
        from daemon.status import DaemonStatus

        return self._parsed(DaemonStatus, body)

    def cache(self) -> CacheContents:
        body = self._answer("GET", "/mlxd/cache")
        from daemon.status import CacheContents

        return self._parsed(CacheContents, body)

    def check_cache(self) -> CacheCheck:
        body = self._answer("GET", "/mlxd/cache/check")
        from daemon.status import CacheCheck

        return self._parsed(CacheCheck, body)

    def clear_cache(self) -> CacheStatus:
        """What is left afterwards."""
        body = self._answer("POST", "/mlxd/cache/clear", with_token=True)
        from daemon.status import CacheStatus

        return self._parsed(CacheStatus, body)

    def disk(self) -> DiskContents:
        return self._disk("GET", "/mlxd/cache/disk")

    def clear_disk(self) -> DiskContents:
        """What is left afterwards. What memory holds is forgotten, too."""
        return self._disk("POST", "/mlxd/cache/disk/clear")

    def _disk(self, method: str, path: str) -> DiskContents:
        body = self._answer(method, path, with_token=method == "POST")
        from daemon.disk_status import DiskContents

        return self._parsed(DiskContents, body)

    def check_disk(self) -> DiskCheck:
        """Waits until all of it was read."""
        body = self._answer("POST", "/mlxd/cache/disk/check", CHECK_SECONDS, with_token=True)
        from daemon.disk_status import DiskCheck

        return self._parsed(DiskCheck, body)

    def sessions(self) -> SessionList:
        body = self._answer("GET", "/v1/sessions")
        from daemon.status import SessionList

        return self._parsed(SessionList, body)

    def request(self, wanted: str | None = None) -> RequestStatus:
        """The request whose id begins so, or the last one of that session; else the very last.

        Raises CommandFailed if there is none, or more than one.
        """
        engine = self.status().engine
        body = self._answer("GET", "/mlxd/requests", with_token=True)
        from daemon.status import RequestList

        past = self._parsed(RequestList, body).data
        return chosen(past, (*engine.running, *engine.waiting), wanted)

    def models(self) -> ModelList:
        body = self._answer("GET", "/mlxd/models")
        from daemon.status import ModelList

        return self._parsed(ModelList, body)

    def load_model(self, model: str | None) -> ListedModel:
        """Wait until it is loaded; without a name the default."""
        return self._one_model("load", model)

    def use_model(self, model: str) -> ListedModel:
        """Make it the default of the running daemon."""
        return self._one_model("use", model)

    def unload_model(self, model: str | None) -> ModelList:
        """Without a name all that are loaded; the models as they are then."""
        path = f"/mlxd/models/unload{_query(model)}"
        body = self._answer("POST", path, with_token=True)
        from daemon.status import ModelList

        return self._parsed(ModelList, body)

    def _one_model(self, action: str, model: str | None) -> ListedModel:
        path = f"/mlxd/models/{action}{_query(model)}"
        body = self._answer("POST", path, LOAD_SECONDS, with_token=True)
        from daemon.status import ListedModel

        return self._parsed(ListedModel, body)

    def stop(self) -> None:
        """Ask it to end; it answers before it does."""
        self._answer("POST", "/mlxd/stop", with_token=True)

    def reset_session(self, session: str) -> SessionStatus:
        path = f"/v1/sessions/{quote(session, safe='')}/reset"
        body = self._answer("POST", path, with_token=True)
        from daemon.status import SessionStatus

        return self._parsed(SessionStatus, body)

    def delete_session(self, session: str) -> None:
        self._answer("DELETE", f"/v1/sessions/{quote(session, safe='')}", with_token=True)

    def _answer(
        self, method: str, path: str, seconds: float = ANSWER_SECONDS, *, with_token: bool = False
    ) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=seconds)
        try:
            connection.request(method, path, headers=self._headers(with_token))
            response = connection.getresponse()
            body = response.read()
        except ConnectionRefusedError:
            raise NotRunning(
                f"Nothing listens on port {self._port}. Start a daemon with `mlxd serve`."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise NotAnswering(f"Port {self._port} does not answer: {reason}.") from None
        finally:
            connection.close()
        if response.status == UNAUTHORIZED and not with_token and self._headers(True):
            return self._answer(method, path, seconds, with_token=True)  # an API key is set
        if response.status != 200:
            raise self._refusal(response.status, body)
        return body

    def _headers(self, with_token: bool) -> dict[str, str]:
        found = read_token(self._token_file) if with_token and self._token_file else None
        return {"authorization": f"Bearer {found}"} if found else {}

    def _refusal(self, status: int, body: bytes) -> NotAnswering | Refused:
        """The daemon's own words, if it was the daemon that spoke."""
        try:
            return Refused(str(json.loads(body)["error"]["message"]), status)
        except (ValueError, TypeError, KeyError):
            return NotAnswering(f"Port {self._port} answers with {status}: is that mlxd?")

    def _parsed(self, kind: type[Value], body: bytes) -> Value:
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(kind).validate_json(body)
        except ValidationError:
            raise NotAnswering(self._stranger()) from None

    def _stranger(self) -> str:
        """Who it is that answers in a form of its own."""
        try:
            hello = json.loads(self._answer("GET", "/api/hello", STATUS_SECONDS))
            name, version = hello["name"], str(hello["version"])
        except (CommandFailed, ValueError, TypeError, KeyError):
            name, version = "", ""
        if name == "mlxd" and version != __version__:
            return other_version(version)
        return f"Port {self._port} answers, but not as mlxd of this version."


def other_version(version: str) -> str:
    """What to do about a daemon of another version."""
    return (
        f"The daemon that runs is mlxd {version}, this command is {__version__}: "
        "`mlxd restart` starts it anew; in the foreground, end it and start it again."
    )


def _query(model: str | None) -> str:
    return "" if model is None else "?" + urlencode({"model": model})


def chosen(
    past: Sequence[RequestStatus], present: Sequence[RequestStatus], wanted: str | None
) -> RequestStatus:
    """See `Client.request`. Ids may begin as answers' ids do, or with neither prefix."""
    if wanted is None:
        if not past:
            raise CommandFailed("No request has ended yet.")
        return past[-1]
    plain = wanted.removeprefix("req_").removeprefix("chatcmpl-").removeprefix("cmpl-")
    everything = (*past, *present)
    found = {each.id: each for each in everything if each.id.removeprefix("req_").startswith(plain)}
    if len(found) > 1:
        raise CommandFailed(f"{len(found)} requests begin with {wanted}: give more of the id.")
    of_session = [each for each in everything if each.session == wanted]
    matches = [*found.values()] or of_session[-1:]
    if not matches:
        raise CommandFailed(f"No request of late begins with {wanted}, and no session is named so.")
    return matches[0]
