"""The daemon's own token: private, stable, whole."""

import os
import stat
import threading

import pytest

from daemon.own_token import own_token, read_token


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "state" / "private" / "token"


def test_it_is_made_at_the_first_start_for_this_account_alone(file):
    before = os.umask(0)
    try:
        token = own_token(file)
    finally:
        os.umask(before)
    assert len(token) >= 43
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)
    assert [each.name for each in file.parent.iterdir()] == ["token"]


def test_it_stays_the_same_from_start_to_start(file):
    assert own_token(file) == own_token(file) == read_token(file)


def test_two_are_different(file, tmp_path):
    assert own_token(file) != own_token(tmp_path / "other" / "token")


@pytest.mark.parametrize("loose", [0o640, 0o604, 0o660, 0o644])
def test_one_that_others_could_have_read_is_replaced(file, loose):
    first = own_token(file)
    file.chmod(loose)
    second = own_token(file)
    assert second != first
    assert read_token(file) == second
    assert mode(file) == 0o600


def test_a_folder_that_others_may_enter_is_closed_to_them(file):
    own_token(file)
    file.parent.chmod(0o755)
    own_token(file)
    assert mode(file.parent) == 0o700


def test_a_link_in_its_place_is_replaced_not_followed(file, tmp_path):
    own_token(file)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("chosen by another\n")
    elsewhere.chmod(0o600)
    file.unlink()
    file.symlink_to(elsewhere)
    assert own_token(file) != "chosen by another"
    assert not file.is_symlink()
    assert elsewhere.read_text() == "chosen by another\n"


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe"])
def test_a_file_without_a_token_gets_one(file, content):
    own_token(file)
    file.write_bytes(content)
    assert read_token(file) is None
    assert own_token(file) == read_token(file)


def test_daemons_that_start_together_have_the_same(file):
    found = []
    threads = [threading.Thread(target=lambda: found.append(own_token(file))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert set(found) == {read_token(file)}


def test_who_has_no_file_has_no_token(file):
    assert read_token(file) is None
