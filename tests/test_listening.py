"""Where the daemon listens: what is bound, what is refused, and who can open it."""

import os
import socket
import stat
from pathlib import Path

import pytest

from daemon.errors import ConfigurationError
from daemon.listening import bind_addresses, bind_unix, listening
from tests.e2e.processes import free_port


def addresses(sockets: list[socket.socket]) -> set[str]:
    found = {listener.getsockname()[0] for listener in sockets}
    for listener in sockets:
        listener.close()
    return found


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", {"127.0.0.1", "::1"}),
        ("::1", {"127.0.0.1", "::1"}),
        ("0.0.0.0", {"0.0.0.0", "::1"}),
        ("::", {"127.0.0.1", "::"}),
        ("127.0.0.2", {"127.0.0.1", "::1"}),
    ],
)
def test_loopback_is_always_bound_and_nothing_that_was_not_asked_for(
    host: str, expected: set[str]
) -> None:
    bound = addresses(bind_addresses(free_port(), host))
    assert "127.0.0.1" in bound or "0.0.0.0" in bound
    assert bound <= expected


def test_an_address_of_another_machine_is_refused_and_nothing_stays_bound() -> None:
    port = free_port()
    with pytest.raises(ConfigurationError, match="no address of this machine"):
        bind_addresses(port, "192.0.2.1")
    assert addresses(bind_addresses(port, "127.0.0.1")) >= {"127.0.0.1"}


def test_only_this_account_can_open_the_socket_and_it_is_gone_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "mlxd.sock"
    with listening(free_port(), None, path) as sockets:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert sockets[-1].family == socket.AF_UNIX
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_socket_that_a_killed_daemon_left_is_replaced_and_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mlxd.sock"
    bind_unix(path).close()
    assert path.exists()
    with bind_unix(path), pytest.raises(ConfigurationError, match="another program listens"):
        bind_unix(path)


def test_a_file_is_not_taken_for_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("precious")
    with pytest.raises(ConfigurationError, match="no socket"):
        bind_unix(path)
    assert path.read_text() == "precious"


def test_where_no_socket_can_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        bind_unix(tmp_path / ("x" * 120))
    with pytest.raises(ConfigurationError, match="cannot be listened on"):
        bind_unix(Path(os.path.relpath(tmp_path, Path.cwd())) / "missing" / "s")


def test_a_socket_that_cannot_be_made_leaves_no_port_taken(tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "s").write_text("")
    with pytest.raises(ConfigurationError), listening(port, None, tmp_path / "s"):
        pass
    with listening(port):
        pass
