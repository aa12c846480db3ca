"""The menu bar on this Mac: what it looks at, and what its clicks do."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict

from daemon import paths
from daemon.cli.this_mac import ThisMac
from daemon.client import Client
from daemon.errors import CommandFailed
from daemon.views.agents import agent_lines
from launchd import menubar
from launchd.agent import Agent
from launchd.errors import ServiceError
from launchd.menubar import Action, Menu, Today
from launchd.tools import Run, run_tool

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
"""The menu does not move while it waits for the daemon's answer."""

CLIPBOARD = ("-e", "on run given", "-e", "set the clipboard to item 1 of given", "-e", "end run")


class Bar:
    """Looks at the daemon, and carries out clicks."""

    def __init__(self, client: Client, agent: Agent, port: int, run: Run) -> None:
        self._client = client
        self._agent = agent
        self._run = run
        self._lines = agent_lines(port)
        self._today = Today()

    def look(self) -> Menu:
        try:
            status = asdict(self._client.status(LOOK_SECONDS))
        except CommandFailed:
            return menubar.menu_of(None, self._today, tuple(self._lines))
        now = time.localtime()
        seconds_today = now.tm_hour * 3600 + now.tm_min * 60 + now.tm_sec
        self._today = self._today.after(status, time.strftime("%F", now), seconds_today)
        return menubar.menu_of(status, self._today, tuple(self._lines))

    def act(self, action: Action, argument: str) -> None:
        try:
            self._carry_out(action, argument)
        except (CommandFailed, ServiceError) as error:
            log.warning("%s: %s", action, error)

    def _carry_out(self, action: Action, argument: str) -> None:
        match action:
            case Action.START:
                self._agent.start()  # the next look shows when it answers
            case Action.STOP:
                self._client.stop()
            case Action.UNLOAD:
                self._client.unload_model(None)
            case Action.OPEN_LOG:
                self._run(("/usr/bin/open", str(paths.daemon_log())))
            case Action.COPY:
                self._run(("/usr/bin/osascript", *CLIPBOARD, self._lines[argument]))
            case Action.QUIT:
                pass


def run(mac: ThisMac) -> None:
    """Until one quits. Raises ServiceError without rumps."""
    bar = Bar(mac.client(), mac.agent, mac.settings().port, run_tool)
    menubar.run(bar.look, bar.act)
