"""Where the daemon listens: this machine's loopback, and only if asked, elsewhere.

Loopback is always bound, so that the commands find the daemon. One further address may be, and a
Unix socket, which only its own account can open.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from daemon.errors import ConfigurationError
from daemon.port_owner import owner_of

LOOPBACK = ("127.0.0.1", "::1")
LONGEST_UNIX_PATH = 103
"""Bytes: macOS' limit, Linux has four more."""

PRIVATE_UMASK = 0o177
UNIX_MODE = 0o600


@contextmanager
def listening(
    port: int, host: str | None = None, unix_socket: Path | None = None
) -> Iterator[list[socket.socket]]:
    """Sockets that listen until the block ends. Raises ConfigurationError if one cannot."""
    with ExitStack() as opened:
        sockets = bind_loopback(port) if host is None else bind_addresses(port, host)
        for each in sockets:
            opened.callback(each.close)
        if unix_socket is not None:
            sockets.append(bind_unix(unix_socket))
            opened.callback(_remove, unix_socket, _identity(unix_socket))
            opened.callback(sockets[-1].close)
        yield sockets


def bind_loopback(port: int) -> list[socket.socket]:
    """Sockets on this machine's loopback addresses; IPv6's only where there is one.

    Raises ConfigurationError if the port is taken.
    """
    return _bind_all(LOOPBACK, port)


def bind_addresses(port: int, host: str) -> list[socket.socket]:
    """Loopback and `host`, a literal address; a wildcard covers its own version's loopback."""
    address = ipaddress.ip_address(host)
    if address.is_loopback:
        return bind_loopback(port)
    covered = LOOPBACK[:1] if address.version == 4 else LOOPBACK[1:]
    kept = [each for each in LOOPBACK if not (address.is_unspecified and each in covered)]
    return _bind_all([*kept, str(address)], port)


def _bind_all(addresses: Sequence[str], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    for address in addresses:
        try:
            sockets.append(_bound(address, port))
        except OSError as error:
            if address == "::1" and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                continue
            for bound in sockets:
                bound.close()
            raise ConfigurationError(_refused_port(address, port, error)) from error
    return sockets


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind((address, port))
        listener.listen()  # two may be bound on Linux; only one can listen
    except OSError:
        listener.close()
        raise
    return listener


def _refused_port(address: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        owner = owner_of(address.replace("0.0.0.0", "127.0.0.1"), port)
        return f"Port {port} is taken by {owner}: stop it, or choose another with --port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{address} is no address of this machine: choose another with --host."
    return f"Port {port} cannot be used: {error.strerror}."


def bind_unix(path: Path) -> socket.socket:
    """A socket of mode 0600 at `path`, in place of one that a killed daemon left there.

    Raises ConfigurationError if somebody listens there, or if it is no place for a socket.
    """
    if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
        raise ConfigurationError(
            f"{path} is too long for a socket: at most {LONGEST_UNIX_PATH} bytes."
        )
    _make_room(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    former = os.umask(PRIVATE_UMASK)
    try:
        listener.bind(os.fspath(path))
        path.chmod(UNIX_MODE)
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"{path} cannot be listened on: {error.strerror}.") from error
    finally:
        os.umask(former)
    return listener


def _make_room(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigurationError(f"{path} is there already, and is no socket: it stays as it is.")
    if _answers(path):
        raise ConfigurationError(f"{path} is taken: another program listens there.")
    path.unlink(missing_ok=True)


def _answers(path: Path) -> bool:
    """A socket that nobody listens on refuses; whatever else happens, somebody may."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino


def _remove(path: Path, identity: tuple[int, int]) -> None:
    """Only our own: another daemon may have taken the place meanwhile."""
    try:
        if _identity(path) == identity:
            path.unlink()
    except OSError:
        return


def own_names() -> frozenset[str]:
    """What other machines call this one: its name, and how it is announced on its network."""
    name = socket.gethostname().lower().rstrip(".")
    first = name.partition(".")[0]
    return frozenset({name, first, f"{first}.local"})
