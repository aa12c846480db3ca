"""A LaunchAgent from its installation to its end, by what it has to look like afterwards.

Every step may be repeated: what is already so is left alone. Whether the program itself answers is
the caller's to find out, and so is asking it to end before launchd makes it.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from launchd import plist
from launchd.errors import NotPermitted, ServiceError
from launchd.launchctl import AgentState, Launchctl
from launchd.plist import AgentSpec


class Change(StrEnum):
    """What an installation found to do."""

    INSTALLED = "installed"
    RENEWED = "renewed"
    STARTED = "started"
    NONE = "unchanged"


class Agent:
    """One agent by its label; its plist stands in `folder`, which is `~/Library/LaunchAgents`.

    Methods raise NoGuiSession, NotPermitted, ServiceError.
    """

    def __init__(self, label: str, folder: Path, launchctl: Launchctl) -> None:
        self.label = label
        self.plist = folder / f"{label}.plist"
        self._launchctl = launchctl

    @property
    def is_installed(self) -> bool:
        return self.plist.is_file()

    def environment(self) -> dict[str, str] | None:
        """What its plist gives it; None if it is not installed."""
        content = self._read()
        return None if content is None else plist.environment_of(content)

    def program(self) -> str:
        """The path of the program that its plist starts; "" if it is not installed."""
        content = self._read()
        return "" if content is None else plist.program_of(content)

    def state(self) -> AgentState:
        return self._launchctl.state(self.label)

    def install(self, spec: AgentSpec, *, must_renew: bool = False) -> Change:
        """Write the plist and start the agent; one that runs by the same plist is left alone,
        unless it `must_renew`."""
        assert spec.label == self.label
        content, state = plist.rendered(spec), self.state()
        self._refuse_strangers(state)
        before = self._read()
        if before == content and state.is_running and not must_renew:
            return Change.NONE
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        if before != content:
            self._write(content)
        self._launchctl.bootout(self.label)
        self._launchctl.bootstrap(self.label, self.plist)
        self._launchctl.kickstart(self.label)
        if before is None:
            return Change.INSTALLED
        return Change.RENEWED if state.is_running or before != content else Change.STARTED

    def uninstall(self) -> bool:
        """End the agent and remove its plist; whether there was anything to remove."""
        was_loaded, was_there = self.state().is_loaded, self.is_installed
        if was_loaded:
            self._launchctl.bootout(self.label)
        try:
            self.plist.unlink(missing_ok=True)
        except PermissionError as error:
            raise self._not_ours() from error
        return was_loaded or was_there

    def start(self) -> None:
        """Start it, also after launchd forgot it. It has to be installed."""
        if not self.is_installed:
            raise ServiceError("The service is not installed: `mlxd install` does that.")
        if not self.state().is_loaded:
            self._launchctl.bootstrap(self.label, self.plist)
        self._launchctl.kickstart(self.label)

    def end(self) -> None:
        """End it by force if need be; it stays installed, and starts again at the next login."""
        self._launchctl.bootout(self.label)

    def _refuse_strangers(self, state: AgentState) -> None:
        """An agent of that name by another plist is not ours to replace, if that is still there."""
        other = Path(state.plist or self.plist)
        if other.resolve() != self.plist.resolve() and other.exists():
            raise ServiceError(
                f"{self.label} is already there by {other}, which is not this account's "
                f"{self.plist}. Remove it first: launchctl bootout gui/UID/{self.label}"
            )

    def _read(self) -> bytes | None:
        try:
            return plist.read(self.plist)
        except PermissionError as error:
            raise self._not_ours() from error

    def _write(self, content: bytes) -> None:
        try:
            plist.write(self.plist, content)
        except PermissionError as error:
            raise self._not_ours() from error

    def _not_ours(self) -> NotPermitted:
        return NotPermitted(
            f"{self.plist} cannot be changed: it, or its folder, belongs to another account, as "
            f"after a run with sudo. `sudo chown -R $USER {self.plist.parent}` gives it back."
        )
