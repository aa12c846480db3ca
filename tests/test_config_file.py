"""`config.toml`: read by the rules of every other source, written without losing a comment."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from daemon import config_file
from daemon.cli import app
from daemon.errors import ConfigurationError
from daemon.settings import TABLE, Origin, Settings, resolve
from daemon.settings import config_file as chosen_file

WRITTEN = """\
# The house's settings
port = 9000          # as in the office

prefix-cache-bytes = "2GB"
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mlxd" / "config.toml"


@pytest.fixture
def written(path: Path) -> Path:
    path.parent.mkdir()
    path.write_text(WRITTEN)
    return path


def test_a_file_that_is_not_there_sets_nothing(path: Path) -> None:
    assert resolve({}, {}, config_file.read(path)).settings == Settings()


def test_the_file_wins_over_the_defaults_only(written: Path) -> None:
    file = config_file.read(written)
    resolved = resolve({"prefix_cache_bytes": "1GB"}, {}, file)
    assert (resolved.settings.port, resolved.origins["port"]) == (9000, Origin.FILE)
    assert resolved.settings.prefix_cache_bytes == 10**9
    assert resolve({}, {"MLXD_PORT": "9001"}, file).settings.port == 9001


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n\nport = 'x'\n", "line 3: port is 'x', but has to be a whole number"),
        ("\nprot = 1\n", "line 2: prot is no setting; did you mean `port`?"),
        ("port = 1\n[odd]\na = 1\n", "line 2: odd"),
        ("port = 1\nport = 2\n", "line 2"),
        ("max-sessions = 3\nmax_sessions = 3\n", "line 2: max_sessions stands there twice"),
        ("port = \n", "line 1"),
        ("chunk_tokens = 2020-01-01\n", "line 1: chunk_tokens has to be a text, a number"),
    ],
)
def test_what_is_wrong_is_refused_with_file_line_and_key(
    path: Path, text: str, expected: str
) -> None:
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        resolve({}, {}, config_file.read(path))
    assert str(path) in str(refusal.value)
    assert expected in str(refusal.value)


def test_every_setting_can_stand_in_the_file(path: Path) -> None:
    for setting in TABLE:
        config_file.write_value(path, setting.name, _example(setting.name))
    file = config_file.read(path)
    assert set(file.values) == {setting.name for setting in TABLE}
    for setting in TABLE:
        setting.parse(file.values[setting.name].text)


def _example(name: str) -> str:
    setting = next(each for each in TABLE if each.name == name)
    words = ("4", "16", "yes", "every", "cut", "info", "a.b:c", "a=b", "/tmp/x", "127.0.0.1")
    candidates = (*words, "https://a.b", "text")
    return next(each for each in candidates if _is_taken(setting.parse, each))


def _is_taken(parse: object, text: str) -> bool:
    try:
        parse(text)  # type: ignore[operator]
    except ValueError:
        return False
    return True


def test_writing_a_key_keeps_comments_order_and_mode(written: Path) -> None:
    written.chmod(0o640)
    config_file.write_value(written, "prefix_cache_bytes", "3GB")
    config_file.write_value(written, "port", "9100")
    text = written.read_text()
    assert "# The house's settings" in text
    assert "# as in the office" in text
    assert "9100" in text
    assert resolve({}, {}, config_file.read(written)).settings.prefix_cache_bytes == 3 * 10**9
    assert stat.S_IMODE(written.stat().st_mode) == 0o640
    assert [each.name for each in written.parent.iterdir()] == ["config.toml"]


def test_a_new_file_is_its_owners_alone(path: Path) -> None:
    config_file.write_value(path, "port", "9000")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert config_file.remove_value(path, "port")
    assert not config_file.remove_value(path, "port")
    assert resolve({}, {}, config_file.read(path)).settings == Settings()


def test_another_file_can_be_named_and_has_to_be_there(written: Path, tmp_path: Path) -> None:
    usual = tmp_path / "usual.toml"
    assert chosen_file(usual, {"MLXD_CONFIG": str(written)}).values["port"].text == "9000"
    assert chosen_file(usual, {}).values == {}
    with pytest.raises(ConfigurationError, match="MLXD_CONFIG"):
        chosen_file(usual, {"MLXD_CONFIG": str(tmp_path / "nowhere.toml")})


def mlxd(path: Path, *arguments: str) -> tuple[int, str, BaseException | None]:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    environment = {"MLXD_CONFIG": str(path)} | {
        setting.environment_name: "" for setting in TABLE if setting.environment_name in os.environ
    }
    result = CliRunner().invoke(app, ["config", *arguments], env=environment)
    return result.exit_code, result.output, result.exception


def test_the_command_shows_each_value_with_its_origin(written: Path) -> None:
    code, output, _ = mlxd(written, "--json")
    found = {each["key"]: each for each in json.loads(output)}
    assert code == 0
    assert set(found) == {setting.name for setting in TABLE}
    assert found["port"] == {"key": "port", "value": 9000, "origin": "file"}
    assert found["kv_bits"]["origin"] == "default"
    _, shown, _ = mlxd(written)
    assert "config.toml" in next(line for line in shown.splitlines() if line.startswith("port"))


def test_the_command_writes_what_the_daemon_would_take_and_nothing_else(written: Path) -> None:
    before = written.read_text()
    for arguments in (("port", "x"), ("nothing", "1"), ("prefix_checkpoint_policy", "no")):
        code, _, error = mlxd(written, "set", *arguments)
        assert code != 0
        assert isinstance(error, ConfigurationError)
    assert written.read_text() == before
    assert mlxd(written, "set", "port", "9200")[0] == 0
    assert config_file.read(written).values["port"].text == "9200"
    assert mlxd(written, "unset", "port")[0] == 0
    assert "port" not in config_file.read(written).values


def test_what_contradicts_the_rest_of_the_file_is_not_written(path: Path) -> None:
    mlxd(path, "set", "prefix-checkpoint-interval", "64")
    _, _, error = mlxd(path, "set", "prefix-checkpoint-prompt-end", "every")
    assert isinstance(error, ConfigurationError)
    assert set(config_file.read(path).values) == {"prefix_checkpoint_interval"}


def test_a_key_that_is_no_setting_can_be_taken_out(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("prot = 1\n")
    assert mlxd(path, "unset", "prot")[0] == 0
    assert config_file.read(path).values == {}
