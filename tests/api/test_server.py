"""The port: loopback only, and taken is said."""

import socket

import pytest

from daemon.errors import ConfigurationError
from daemon.server import bind_loopback
from tests.e2e.processes import free_port


def test_only_addresses_of_this_machine_are_bound_all_with_one_port() -> None:
    port = free_port()
    bound = bind_loopback(port)
    names = [listener.getsockname()[:2] for listener in bound]
    for listener in bound:
        listener.close()
    assert names[0] == ("127.0.0.1", port)
    assert set(names) <= {("127.0.0.1", port), ("::1", port)}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_on_either_address_is_refused(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        other = socket.create_server((address, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {address}")
    with other, pytest.raises(ConfigurationError, match="is taken"):
        bind_loopback(other.getsockname()[1])
