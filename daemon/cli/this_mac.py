"""This account's service on this Mac: where the parts are put together that talk to macOS.

The settings of a service are those that its plist and the settings file give it, whatever the
shell says that asks; a new installation takes the shell's.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from daemon import paths
from daemon.cli.flags import settings_file
from daemon.client import Client
from daemon.errors import CommandFailed
from daemon.service import Service, Waiting
from daemon.settings import CONFIG_VARIABLE, TABLE, Settings, environment, resolve
from daemon.starts import Starts
from daemon.status import DaemonStatus
from launchd.agent import Agent, Change
from launchd.environment import agent_environment, standing_alone
from launchd.launchctl import Launchctl
from launchd.plist import AgentSpec
from launchd.program import stable_program
from launchd.specs import DAEMON_LABEL, MENUBAR_LABEL, daemon_spec, menubar_spec
from launchd.tools import Run, run_tool

ELSEWHERE = (
    "Services are launchd's, which only macOS has. Here `mlxd serve` runs the daemon in the "
    "foreground, for whatever supervises programs on this system."
)
AS_ROOT = "Run this as yourself, without sudo: the service belongs to your account."
MODULE = "daemon.cli"
FILE_VARIABLES = (CONFIG_VARIABLE, "_MODEL", "_FILE")
"""How variables end that may name a file or a folder."""


class ThisMac:
    """Raises CommandFailed where there is no launchd, and for root, who has no screen."""

    def __init__(self, run: Run, system: str, uid: int) -> None:
        if system != "Darwin":
            raise CommandFailed(ELSEWHERE)
        if uid == 0:
            raise CommandFailed(AS_ROOT)
        launchctl = Launchctl(run, uid, time.sleep)
        folder = paths.launch_agents_folder()
        self.agent = Agent(DAEMON_LABEL, folder, launchctl)
        self.menubar = Agent(MENUBAR_LABEL, folder, launchctl)

    def settings(self) -> Settings:
        """Those of the installed service, else those that it would have."""
        installed = self.agent.environment()
        return _settings(new_environment() if installed is None else installed)

    def client(self) -> Client:
        return _client(self.settings())

    def service(self) -> Service:
        return self._service(self.client())

    def install(self) -> tuple[Change, DaemonStatus]:
        spec = new_spec()
        settings = _settings(spec.environment)
        return self._service(_client(settings)).install(spec, settings.digest)

    def install_menubar(self) -> Change:
        log = paths.logs_folder() / "menubar.log"
        return self.menubar.install(menubar_spec(program(), new_environment(), log))

    def restart_menubar(self) -> None:
        """One that runs may be of another version by now."""
        if self.menubar.state().is_running:
            self.menubar.end()
            self.menubar.start()

    def _service(self, client: Client) -> Service:
        starts = Starts(paths.starts_file())
        return Service(self.agent, client, starts, Waiting(time.sleep, time.monotonic))


def this_mac() -> ThisMac:
    return ThisMac(run_tool, platform.system(), os.getuid())


def new_spec() -> AgentSpec:
    """The daemon's agent as it would be installed from this shell."""
    given = new_environment()
    shutdown_seconds = _settings(given).shutdown_seconds
    return daemon_spec(program(), given, paths.terminal_log(), shutdown_seconds)


def new_environment() -> dict[str, str]:
    """What an agent is given that is installed from this shell."""
    settings = [setting.environment_name for setting in TABLE]
    given = agent_environment(environment(), Path.home(), (CONFIG_VARIABLE, *settings))
    files = {name: given[name] for name in given if name.endswith(FILE_VARIABLES)}
    here = Path.cwd()
    return given | {name: standing_alone(value, here) for name, value in files.items()}


def program() -> list[str]:
    """The words that start this command, also after an upgrade. Raises ServiceError."""
    folders = environment().get("PATH", "").split(os.pathsep)
    search = [*map(Path, folders), Path.home() / ".local" / "bin"]
    return list(stable_program(Path(sys.executable), MODULE, search))


def _settings(given: Mapping[str, str]) -> Settings:
    return resolve({}, given, settings_file(given)).settings


def _client(settings: Settings) -> Client:
    return Client(settings.port, paths.token_file())
