"""The settings that open a door: each asks for what keeps it."""

from pathlib import Path

import pytest

from daemon.errors import ConfigurationError
from daemon.settings import resolve

KEY = {"api_key_file": "/keys/mlxd"}
REMOTE = {"host": "0.0.0.0", "allow_remote": "yes"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "[fe80::1]"])
def test_other_machines_are_let_in_only_on_purpose_and_with_a_key(host: str) -> None:
    with pytest.raises(ConfigurationError, match="--allow-remote yes"):
        resolve({"host": host, **KEY}, {})
    with pytest.raises(ConfigurationError, match="an API key"):
        resolve({"host": host, "allow_remote": "yes"}, {})
    assert resolve({"host": host, "allow_remote": "yes", **KEY}, {}).settings.is_remote
    by_keychain = {"host": host, "allow_remote": "yes", "api_key_keychain": "mlxd"}
    assert resolve(by_keychain, {}).settings.is_remote


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.0.0.2", "none"])
def test_loopback_asks_for_nothing_more(host: str) -> None:
    assert not resolve({"host": host}, {}).settings.is_remote
    assert not resolve({"allow_remote": "yes"}, {}).settings.is_remote


@pytest.mark.parametrize("host", ["studio.local", "0.0.0", "*", "192.168.1.5:80", ""])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="has to be an address"):
        resolve({"host": host}, {})


def test_there_is_one_key() -> None:
    with pytest.raises(ConfigurationError, match="does not go together"):
        resolve({**KEY, "api_key_keychain": "mlxd"}, {})
    taken_back = resolve({**KEY, "api_key_keychain": "none"}, {"MLXD_API_KEY_KEYCHAIN": "mlxd"})
    assert taken_back.settings.api_key_keychain is None


def test_a_path_is_the_same_from_every_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert resolve({"unix_socket": "~/s"}, {}).settings.unix_socket == str(Path("/home/me/s"))
    for name in ("unix_socket", "api_key_file"):
        with pytest.raises(ConfigurationError, match="an absolute path"):
            resolve({name: "here/s"}, {})


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ("https://chat.example", {"https://chat.example"}),
        ("https://Chat.example/", {"https://chat.example"}),
        ("https://a.b:443, http://a.b:80", {"https://a.b", "http://a.b"}),
        ("http://a.b:8080,chrome-extension://xyz", {"http://a.b:8080", "chrome-extension://xyz"}),
        ("none", set()),
    ],
)
def test_origins_are_compared_as_browsers_write_them(written: str, named: set[str]) -> None:
    assert resolve({"cors_origins": written}, {}).settings.named_origins == named


@pytest.mark.parametrize(
    "written", ["*", "null", "https://*", "chat.example", "https://a.b/c", "https://u@a.b", ""]
)
def test_not_everybody_can_be_named(written: str) -> None:
    with pytest.raises(ConfigurationError, match="a list of origins"):
        resolve({"cors_origins": written}, {})
