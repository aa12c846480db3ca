"""The path that a plist names: as uv, pipx and Homebrew lay their environments out."""

import pytest

from launchd.errors import ServiceError
from launchd.program import stable_program


def script_in(environment):
    script = environment / "bin" / "mlxd"
    script.parent.mkdir(parents=True)
    script.write_text("#!python\n")
    script.chmod(0o755)
    (environment / "bin" / "python").touch()
    return script


def link_in(folder, script):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mlxd").symlink_to(script)
    return folder / "mlxd"


def program(environment, *search):
    return stable_program(environment / "bin" / "python", "daemon.cli", search)


@pytest.mark.parametrize(
    "place",
    [".local/share/uv/tools/mlxd", ".local/pipx/venvs/mlxd", "homebrew/Cellar/mlxd/0.1.0/libexec"],
)
def test_the_link_on_the_path_is_named_not_what_is_behind_it(tmp_path, place):
    environment = tmp_path / place
    link = link_in(tmp_path / ".local/bin", script_in(environment))
    assert program(environment, tmp_path / "empty", link.parent) == (str(link),)


def test_a_link_of_another_installation_is_not_taken(tmp_path):
    other = link_in(tmp_path / "bin", script_in(tmp_path / "other"))
    script = script_in(tmp_path / "venv")
    assert program(tmp_path / "venv", other.parent) == (str(script),)


def test_a_plain_environment_is_named_by_its_script_also_when_it_is_activated(tmp_path):
    script = script_in(tmp_path / "venv")
    assert program(tmp_path / "venv", script.parent) == (str(script),)
    assert program(tmp_path / "venv") == (str(script),)


def test_a_relative_folder_on_the_path_is_no_place(tmp_path, monkeypatch):
    script = script_in(tmp_path / "venv")
    link_in(tmp_path / "bin", script)
    monkeypatch.chdir(tmp_path)
    assert program(tmp_path / "venv", (tmp_path / "bin").relative_to(tmp_path)) == (str(script),)


def test_without_a_script_the_interpreter_runs_the_module(tmp_path):
    interpreter = tmp_path / "bin" / "python"
    words = stable_program(interpreter, "daemon.cli", ())
    assert words == (str(interpreter), "-m", "daemon.cli")


@pytest.mark.parametrize("place", [".cache/uv/archive-v0/x7", ".local/pipx/.cache/ab12"])
def test_an_environment_for_one_run_is_refused(tmp_path, place):
    script_in(tmp_path / place)
    with pytest.raises(ServiceError, match="uv tool install"):
        program(tmp_path / place)
