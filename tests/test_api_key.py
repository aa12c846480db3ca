"""Where the API key is: in a file that nobody else can read, or in the keychain."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from daemon.api_key import find_key
from daemon.errors import ConfigurationError
from launchd.tools import Completed, Run

KEY = "0123456789abcdef-key"


def key_file(folder: Path, written: str = KEY, mode: int = 0o600) -> str:
    file = folder / "key"
    file.write_text(written, encoding="utf-8")
    file.chmod(mode)
    return str(file)


def test_a_key_is_what_its_file_says_but_for_blanks_around_it(tmp_path: Path) -> None:
    assert find_key(key_file(tmp_path, f"  {KEY}\n"), None) == KEY
    assert find_key(key_file(tmp_path, mode=0o400), None) == KEY


def test_without_either_there_is_no_key() -> None:
    assert find_key(None, None) is None


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644, 0o610])
def test_a_key_that_others_could_read_is_refused_and_the_remedy_is_named(
    tmp_path: Path, mode: int
) -> None:
    with pytest.raises(ConfigurationError, match="chmod 600"):
        find_key(key_file(tmp_path, mode=mode), None)


@pytest.mark.parametrize("written", ["", "short", "a" * 15, "fifteen and a blank", "ключ" * 8])
def test_a_key_that_can_be_guessed_or_not_be_sent_is_refused_and_not_repeated(
    tmp_path: Path, written: str
) -> None:
    with pytest.raises(ConfigurationError, match="at least 16 characters") as refused:
        find_key(key_file(tmp_path, written), None)
    assert not written or written not in str(refused.value)


def test_a_file_that_is_not_there_or_is_none_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        find_key(str(tmp_path / "missing"), None)
    with pytest.raises(ConfigurationError, match="Is a directory"):
        find_key(str(tmp_path), None)


class Keychain:
    """`security` as it answers on a Mac: exit codes and texts as they are reported."""

    texts: Mapping[int, str] = {
        36: "security: SecKeychainSearchCopyNext: User interaction is not allowed.",
        44: "security: SecKeychainSearchCopyNext: The specified item could not be found in the "
        "keychain.",
        51: "security: SecKeychainItemCopyContent: The user name or passphrase you entered is not "
        "correct.",
        127: "/usr/bin/security: No such file or directory",
        128: "security: SecKeychainItemCopyContent: User canceled the operation.",
        161: "security: something else",
    }

    def __init__(self, code: int, secret: str = "") -> None:
        self.code = code
        self.secret = secret
        self.asked: list[Sequence[str]] = []

    def __call__(self, arguments: Sequence[str]) -> Completed:
        self.asked.append(arguments)
        said = f"{self.secret}\n" if self.secret else ""
        return Completed(arguments, self.code, said, self.texts.get(self.code, ""))


def test_a_key_in_the_keychain_is_asked_for_by_its_item_s_name() -> None:
    keychain = Keychain(0, KEY)
    run: Run = keychain
    assert find_key(None, "mlxd-key", run) == KEY
    command = ["/usr/bin/security", "find-generic-password", "-s", "mlxd-key", "-w"]
    assert [list(asked) for asked in keychain.asked] == [command]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (36, "is locked"),
        (44, "security add-generic-password -s mlxd-key"),
        (51, "refused"),
        (127, "only macOS has one"),
        (128, "refused"),
        (161, "ended with 161"),
    ],
)
def test_what_the_keychain_refuses_is_said_in_words(code: int, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        find_key(None, "mlxd-key", Keychain(code))


def test_a_weak_key_in_the_keychain_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError, match="at least 16") as refused:
        find_key(None, "mlxd-key", Keychain(0, "hunter2"))
    assert "hunter2" not in str(refused.value)
