"""The menu bar: from what the daemon says of itself to lines and clicks; drawn by a fake rumps."""

from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest

from daemon.status import (
    CacheStatus,
    DaemonStatus,
    EngineStatus,
    MemoryStatus,
    ModelStatus,
    RequestStatus,
    SessionStatus,
    TotalsStatus,
)
from launchd.menubar import Action, Bar, Item, Menu, Today, menu_of

READING = RequestStatus("req_1", "reading", "main", 12_000, 6_000, 2_000, 0, 0.0, None, 1.0)
WRITING = RequestStatus("req_2", "decoding", None, 100, 0, 100, 42, 0.0, 0.5, 1.0)
ENGINE = EngineStatus(
    ModelStatus("ready", name="Qwen3-8B-4bit", weight_bytes=4_600_000_000),
    CacheStatus(bytes=1_230_000_000),
    TotalsStatus(prompt=1000, reused=900),
    MemoryStatus(process_bytes=90_000_000),
)


def status(engine=ENGINE, instance="first", uptime_seconds=60.0, **engine_changes):
    changed = replace(engine, **engine_changes)
    return asdict(DaemonStatus("0.1.0", instance, 7, 8642, uptime_seconds, changed))


def titles(menu: Menu) -> list[str]:
    return [item.title for item in menu.items]


def item(menu: Menu, title: str) -> Item:
    return next(each for each in menu.items if each.title == title)


def test_a_ready_daemon_shows_its_model_memory_and_reuse():
    menu = menu_of(status(), Today(prompt=2_500_000, reused=2_300_000))
    assert menu.title == "mlxd"
    assert titles(menu)[:4] == [
        "Qwen3-8B-4bit: ready",
        "Memory: 4.6 GB of weights, 1.2 GB kept of prompts",
        "Idle",
        "Today: 92% of 2.5M prompt tokens reused",
    ]
    assert item(menu, "Unload model").action is Action.UNLOAD
    assert item(menu, "Stop").action is Action.STOP


def test_what_runs_is_counted_in_the_title_and_told():
    waiting = replace(READING, phase="waiting")
    menu = menu_of(status(running=(READING, WRITING), waiting=(waiting,)), Today())
    assert menu.title == "mlxd 3"
    assert titles(menu)[2:5] == [
        "2 running, 1 waiting",
        "    main: 8,000 of 12,000 tokens read",
        "    a request: 42 tokens written",
    ]
    assert "Nothing was read today" in titles(menu)


def test_sessions_are_in_a_menu_of_their_own_the_last_used_first():
    sessions = tuple(
        SessionStatus(f"s{n}", f"session {n}", turns=n, idle_seconds=100.0 - n) for n in range(12)
    )
    found = item(menu_of(status(sessions=sessions), Today()), "12 sessions").items
    assert [each.title for each in found[:2]] == ["session 11: 11 turns", "session 10: 10 turns"]
    assert len(found) == 10


@pytest.mark.parametrize(
    ("state", "title"),
    [("loading", "mlxd …"), ("unloaded", "mlxd ○"), ("failed", "mlxd !"), ("closed", "mlxd !")],
)
def test_a_daemon_without_its_model_shows_so_and_has_nothing_to_unload(state, title):
    model = ModelStatus(state, name="Qwen", error="not loaded,\nbecause " + "x" * 200)
    menu = menu_of(status(model=model), Today())
    assert menu.title == title
    assert titles(menu)[0] == f"Qwen: {state}"
    assert titles(menu)[1].startswith("not loaded, because")
    assert max(map(len, titles(menu))) <= 60
    assert item(menu, "Unload model").action is None


def test_a_stopped_daemon_can_be_started():
    menu = menu_of(None, Today(), ("Codex",))
    assert menu.title == "mlxd –"
    assert item(menu, "Start").action is Action.START
    assert "Stop" not in titles(menu)
    assert item(menu, "Open log").action is Action.OPEN_LOG
    assert item(menu, "Quit this menu").action is Action.QUIT
    copies = item(menu, "Copy configuration for").items
    assert copies == (Item("Codex", Action.COPY, "Codex"),)


def totals(prompt: int, reused: int) -> TotalsStatus:
    return TotalsStatus(prompt=prompt, reused=reused)


def test_today_adds_up_over_restarts_and_begins_anew_at_midnight():
    today = Today().after(status(), "monday", 36_000.0)
    assert (today.prompt, today.reused) == (1000, 900)
    today = today.after(status(totals=totals(1500, 1300)), "monday", 36_100.0)
    assert (today.prompt, today.reused) == (1500, 1300)
    again = status(instance="second", totals=totals(100, 0))
    today = today.after(again, "monday", 36_200.0)
    assert (today.prompt, today.reused) == (1600, 1300)
    tomorrow = status(instance="second", totals=totals(150, 40), uptime_seconds=60_000.0)
    assert today.after(tomorrow, "tuesday", 10.0).prompt == 50


def test_what_was_read_before_midnight_and_before_this_app_is_not_of_today():
    found = Today().after(status(uptime_seconds=50_000.0), "monday", 36_000.0)
    assert (found.prompt, found.reused) == (0, 0)


class Line:
    """rumps.MenuItem and rumps.Menu, as far as they are used: ordered, by unique keys."""

    def __init__(self, title="", callback=None):
        self.title, self.callback, self.lines = title, callback, {}

    def __setitem__(self, key, value):
        assert key not in self.lines
        self.lines[key] = value

    def add(self, value):
        self[f"rule {len(self.lines)}"] = value

    def clear(self):
        self.lines.clear()

    def click(self, title):
        next(each for each in self.lines.values() if getattr(each, "title", "") == title).callback(
            "sender"
        )


class FakeRumps:
    separator = object()
    MenuItem = Line

    def __init__(self):
        self.app = SimpleNamespace(title="", menu=Line(), run=lambda: None)
        self.has_quit = False

    def App(self, name, quit_button):
        assert quit_button is None
        return self.app

    def Timer(self, callback, seconds):
        self.tick = callback
        return SimpleNamespace(start=lambda: None)

    def quit_application(self):
        self.has_quit = True


def test_the_bar_draws_the_menu_and_passes_clicks_on():
    rumps, clicks = FakeRumps(), []
    menu = menu_of(status(), Today(), ("Codex",))
    Bar(rumps, lambda: menu, lambda *click: clicks.append(click)).run()
    shown = list(rumps.app.menu.lines.values())
    assert [getattr(each, "title", "") for each in shown] == titles(menu)
    assert shown[titles(menu).index("")] is rumps.separator
    assert shown[0].callback is None
    rumps.app.menu.click("Stop")
    next(each for each in shown if getattr(each, "lines", None)).click("Codex")
    rumps.app.menu.click("Quit this menu")
    assert clicks == [(Action.STOP, ""), (Action.COPY, "Codex")]
    assert rumps.has_quit


def test_only_words_that_change_leave_the_lines_and_a_new_shape_makes_new_ones():
    rumps = FakeRumps()
    menus = [menu_of(status(), Today(prompt=tokens)) for tokens in (100, 200)]
    menus.append(menu_of(None, Today()))
    at = {"now": 0}
    Bar(rumps, lambda: menus[at["now"]], lambda *click: None).run()
    before = list(rumps.app.menu.lines.values())
    at["now"] = 1
    rumps.tick(None)
    assert list(rumps.app.menu.lines.values()) == before
    assert before[3].title == "Today: 0% of 200 prompt tokens reused"
    at["now"] = 2
    rumps.tick(None)
    assert rumps.app.title == "mlxd –"
    assert len(rumps.app.menu.lines) == len(menus[2].items)
