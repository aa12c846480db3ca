"""A small menu-bar app: what the daemon does, and the few things one does to it.

`menu_of` is all of it but the drawing: a pure function from what the daemon says of itself (its
status as `mlxd status --json` prints it) to the menu. `run` draws that with rumps, which exists on
macOS only and is an extra; whatever is clicked is carried out by callables that the caller gives.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from launchd.errors import ServiceError

Status = Mapping[str, Any]
"""The daemon's status as JSON has it."""

REFRESH_SECONDS = 5.0
SHOWN_SESSIONS = 10
SHOWN_REQUESTS = 5
MAX_TITLE = 60


class Action(StrEnum):
    """What a click asks for; COPY's argument is the name of an agent."""

    START = "start"
    STOP = "stop"
    UNLOAD = "unload"
    OPEN_LOG = "open_log"
    COPY = "copy"
    QUIT = "quit"


@dataclass(frozen=True, slots=True)
class Item:
    """A line of the menu: without an action it is only read, without a title it is a rule."""

    title: str = ""
    action: Action | None = None
    argument: str = ""
    items: tuple[Item, ...] = ()


RULE = Item()


@dataclass(frozen=True, slots=True)
class Menu:
    title: str
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Today:
    """Prompt tokens since midnight, added up over the daemon's lives from what each has counted.

    A life that began before midnight, or before this app, counts from when it was first seen today.
    """

    day: str = ""
    instance: str = ""
    prompt: int = 0
    reused: int = 0
    seen_prompt: int = 0
    seen_reused: int = 0

    def after(self, status: Status, day: str, seconds_today: float) -> Today:
        """With what `status` counts by now; `seconds_today` since midnight."""
        totals, instance = status["engine"]["totals"], status["instance"]
        now = replace(self, day=day, instance=instance)
        if self.day != day:
            now = replace(now, prompt=0, reused=0)
        if self.instance != instance:
            began_today = status["uptime_seconds"] <= seconds_today
            seen = (0, 0) if began_today else (totals["prompt"], totals["reused"])
            now = replace(now, seen_prompt=seen[0], seen_reused=seen[1])
        return replace(
            now,
            prompt=now.prompt + totals["prompt"] - now.seen_prompt,
            reused=now.reused + totals["reused"] - now.seen_reused,
            seen_prompt=totals["prompt"],
            seen_reused=totals["reused"],
        )


def menu_of(status: Status | None, today: Today, agents: Sequence[str] = ()) -> Menu:
    """`status` is None where no daemon answers; `agents` are those whose configuration can be
    copied."""
    tools = (
        Item("Open log", Action.OPEN_LOG),
        Item(
            "Copy configuration for",
            items=tuple(Item(name, Action.COPY, name) for name in agents),
        ),
        RULE,
        Item("Quit this menu", Action.QUIT),
    )
    if status is None:
        return Menu("mlxd –", (Item("Not running"), Item("Start", Action.START), RULE, *tools))
    engine = status["engine"]
    is_ready = engine["model"]["state"] == "ready"
    unload = Item("Unload model", Action.UNLOAD if is_ready else None)
    shown = (*_model(engine), *_work(engine), _reuse(today), *_sessions(engine["sessions"]))
    return Menu(_title(engine), (*shown, RULE, unload, Item("Stop", Action.STOP), RULE, *tools))


def _title(engine: Status) -> str:
    """As short as can be: others want room there, too."""
    running = len(engine["running"]) + len(engine["waiting"])
    sign = {"ready": "", "loading": " …", "unloaded": " ○"}.get(engine["model"]["state"], " !")
    return f"mlxd{sign}" + (f" {running}" if running else "")


def _model(engine: Status) -> tuple[Item, ...]:
    model, memory = engine["model"], engine["memory"]
    lines = [Item(_short(f"{model['name'] or 'No model'}: {model['state']}"))]
    if model["error"]:
        lines.append(Item(_short(model["error"])))
    if model["state"] == "ready":
        weights, kept = _size(model["weight_bytes"]), _size(engine["cache"]["bytes"])
        lines.append(Item(f"Memory: {weights} of weights, {kept} kept of prompts"))
    elif memory["process_bytes"]:
        lines.append(Item(f"Memory: {_size(memory['process_bytes'])}"))
    return tuple(lines)


def _work(engine: Status) -> tuple[Item, ...]:
    running, waiting = engine["running"], engine["waiting"]
    if not running and not waiting:
        return (Item("Idle"),)
    head = Item(f"{len(running)} running, {len(waiting)} waiting")
    return (head, *(Item(_request(each)) for each in running[:SHOWN_REQUESTS]))


def _request(request: Status) -> str:
    read = request["reused"] + request["read"]
    doing = f"{request['generated']:,} tokens written"
    if request["phase"] == "reading":
        doing = f"{read:,} of {request['prompt']:,} tokens read"
    return _short(f"    {request['session'] or 'a request'}: {doing}")


def _reuse(today: Today) -> Item:
    if not today.prompt:
        return Item("Nothing was read today")
    percent = 100 * today.reused // today.prompt
    return Item(f"Today: {percent}% of {_tokens(today.prompt)} prompt tokens reused")


def _sessions(sessions: Sequence[Status]) -> tuple[Item, ...]:
    if not sessions:
        return ()
    latest = sorted(sessions, key=lambda session: session["idle_seconds"])[:SHOWN_SESSIONS]
    lines = tuple(
        Item(_short(f"{each['label'] or each['id']}: {_count(each['turns'], 'turn')}"))
        for each in latest
    )
    return (Item(_count(len(sessions), "session"), items=lines),)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _tokens(number: int) -> str:
    return f"{number:,}" if number < 1_000_000 else f"{number / 1e6:,.1f}M"


def _size(number: int) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def _short(text: str) -> str:
    """One line of what may be anything: a name or an error that a client or a file brought."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    return plain if len(plain) <= MAX_TITLE else plain[: MAX_TITLE - 1] + "…"


class Bar:
    """Draws what `look` gives, again and again, with `rumps`, the module; `act` carries out what
    is clicked. rumps keeps each line that it ever made: where only words changed, the lines stay.
    """

    def __init__(
        self, rumps: Any, look: Callable[[], Menu], act: Callable[[Action, str], None]
    ) -> None:
        self._rumps = rumps
        self._look = look
        self._act = act
        self._shown: Menu | None = None
        self._lines: list[Any] = []
        self._app = rumps.App("mlxd", quit_button=None)

    def run(self) -> None:
        """Until one quits."""
        self.refresh()
        self._rumps.Timer(self.refresh, REFRESH_SECONDS).start()
        self._app.run()

    def refresh(self, _: Any = None) -> None:
        menu = self._look()
        if menu == self._shown:
            return
        if self._shown is None or _shape(menu.items) != _shape(self._shown.items):
            self._lines.clear()
            self._app.menu.clear()
            self._fill(self._app.menu, menu.items)
        else:
            for line, title in zip(self._lines, _titles(menu.items), strict=True):
                line.title = title
        self._app.title = menu.title
        self._shown = menu

    def _fill(self, into: Any, items: Sequence[Item]) -> None:
        """Keys are positions, because titles may repeat. A line without a callback is grey."""
        for position, item in enumerate(items):
            if item == RULE:
                into.add(self._rumps.separator)
                continue
            callback = None if item.action is None else partial(self._clicked, item)
            line = self._rumps.MenuItem(item.title, callback=callback)
            self._lines.append(line)
            into[str(position)] = line
            self._fill(line, item.items)

    def _clicked(self, item: Item, _: Any) -> None:
        if item.action is Action.QUIT:
            self._rumps.quit_application()
        elif item.action is not None:
            self._act(item.action, item.argument)
        self.refresh()


def _shape(items: Sequence[Item]) -> tuple[Any, ...]:
    """All of a menu but its words."""
    return tuple(
        (each.title == "", each.action, each.argument, _shape(each.items)) for each in items
    )


def _titles(items: Sequence[Item]) -> list[str]:
    """In the order in which lines are made."""
    return [title for each in items if each != RULE for title in (each.title, *_titles(each.items))]


def require_extra() -> None:
    """Raises ServiceError without rumps."""
    if importlib.util.find_spec("rumps") is None:
        raise ServiceError(
            "The menu bar takes the extra `menubar`: install mlxd again with it, as in "
            "`uv tool install --force '.[menubar]'` or `pipx install --force '.[menubar]'`."
        )


def run(look: Callable[[], Menu], act: Callable[[Action, str], None]) -> None:
    """Show the menu until one quits. Raises ServiceError without rumps."""
    require_extra()
    import rumps

    Bar(rumps, look, act).run()
