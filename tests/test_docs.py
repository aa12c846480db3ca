"""What the README and the architecture page promise is what the code has."""

import ast
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.applications import Starlette

from daemon.api.admin import Identity
from daemon.api.app import build_app
from daemon.api.endpoint import Door
from daemon.cli import ExitCode, app
from daemon.settings import TABLE
from daemon.status import REASONS
from daemon.views.agents import agent_lines

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PAGES = {"README.md": README, "docs/architecture.md": ARCHITECTURE}


def settings_table() -> str:
    """The table as the README has to have it; paste it there when a setting changes."""
    lines = ["| flag | environment | default | what it sets |", "|---|---|---|---|"]
    for row in TABLE:
        flag = f"`{row.flag} {row.values}`".replace("|", "\\|")
        lines.append(f"| {flag} | `{row.environment_name}` | {row.shown_default} | {row.help} |")
    return "\n".join(lines)


def test_the_readme_lists_every_setting_as_it_is():
    assert settings_table() in README


@pytest.mark.parametrize(
    "command",
    [
        "python3 -m venv .venv && .venv/bin/pip install -e . && .venv/bin/mlxd demo",
        "python3 -m venv .venv && .venv/bin/pip install -e '.[dev]' && .venv/bin/pytest",
    ],
)
def test_the_readme_begins_with_the_two_commands_that_do_everything(command):
    assert f"\n{command}\n" in README


def test_the_readme_lists_every_reason():
    section = README.split("### Why was this read again?")[1].split("\n## ")[0]
    listed = re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE)
    assert tuple(listed) == REASONS


def test_the_readme_lists_every_command():
    rows = re.findall(r"^\| (`mlxd \w+`(?:, `mlxd \w+`)*) \|", README, flags=re.MULTILINE)
    listed = set(re.findall(r"`mlxd (\w+)`", " ".join(rows)))
    assert listed == {
        command.name or command.callback.__name__ for command in app.registered_commands
    }


def test_the_readme_lists_every_route():
    engine: Any = SimpleNamespace(status=None)
    layer: Any = build_app(Door(engine), Identity.of_new_run("this-run", 8642))
    while not isinstance(layer, Starlette):
        layer = layer.app
    paths = {re.sub(r"\{[^}]*\}", "X", route.path) for route in layer.routes} - {"/"}
    section = README.split("### Over HTTP")[1].split("\n## ")[0]
    listed = re.findall(r"`(?:GET|POST|DELETE) (/\S+)`", section)
    assert {re.sub(r"\b(ID|NAME)\b", "X", path) for path in listed} == paths


def test_the_readme_lists_every_exit_code():
    sentence = next(line for line in README.splitlines() if line.startswith("Exit codes:"))
    assert set(map(int, re.findall(r"\b\d+\b", sentence))) == {*ExitCode, 2}


def test_the_port_in_the_examples_is_the_default():
    port = next(row.default for row in TABLE if row.name == "port")
    assert set(re.findall(r"127\.0\.0\.1:(\d+)", README)) == {str(port)}


def test_the_lines_that_the_menu_bar_copies_are_the_readmes():
    for agent, lines in agent_lines(8642).items():
        part = README.split(f"\n**{agent}**", 1)[1]
        assert lines in part.split("\n**", 1)[0]
        assert ":9000" in agent_lines(9000)[agent]
        assert ":8642" not in agent_lines(9000)[agent]


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_project_lead_somewhere(page):
    folder = (ROOT / page).parent
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGES[page])
    for link in links:
        assert link.startswith("https://") or (folder / link).exists(), link


@pytest.mark.parametrize("page", PAGES)
def test_links_to_a_heading_have_one(page):
    headings = re.findall(r"^#+ (.+)$", PAGES[page], flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}
    for anchor in re.findall(r"\]\(#([^)]+)\)", PAGES[page]):
        assert anchor in anchors


def test_the_architecture_page_gives_a_reason_for_every_dependency():
    required = PYPROJECT["project"]["dependencies"]
    names = {re.match(r"[A-Za-z0-9_-]+", each)[0] for each in required}
    section = ARCHITECTURE.split("## Dependencies")[1].split("\n## ")[0]
    given = dict(re.findall(r"^\| `([\w-]+)` \| (.+) \|$", section, flags=re.MULTILINE))
    assert given.keys() == names
    assert all(len(reason) > 20 for reason in given.values())


def test_every_dependency_is_bounded_on_both_sides():
    extras = PYPROJECT["project"]["optional-dependencies"].values()
    for requirement in chain(PYPROJECT["project"]["dependencies"], *extras):
        version = requirement.split(";")[0]
        assert ">=" in version, requirement
        assert "<" in version.replace(">=", ""), requirement


def third_party_imports() -> set[str]:
    """Top-level packages that some module imports, also inside a function."""
    ours = {"daemon", "mlx_backend", "launchd"}
    names: set[str] = set()
    for path in (path for package in ours for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(str(node.module).split(".")[0])
    return names - ours - set(sys.stdlib_module_names)


def test_what_is_declared_is_imported_and_what_is_imported_is_declared():
    """Nothing is used that is here only because something else wants it."""
    extras = PYPROJECT["project"]["optional-dependencies"]["menubar"]
    required = [*PYPROJECT["project"]["dependencies"], *extras]
    declared = {re.match(r"[A-Za-z0-9_-]+", each)[0].replace("-", "_") for each in required}
    assert third_party_imports() == declared
