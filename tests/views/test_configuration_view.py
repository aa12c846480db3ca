"""`mlxd config` as people read it."""

from __future__ import annotations

from daemon.settings import resolve
from daemon.views.configuration import configuration_view
from tests.views.examples import shown


def test_what_was_turned_off_is_shown_in_the_word_that_turned_it_off() -> None:
    resolved = resolve({"disk_cache_write_bytes_per_day": "none"}, {})
    [line] = [
        line
        for line in shown(configuration_view(resolved)).splitlines()
        if line.startswith("disk_cache_write_bytes_per_day")
    ]
    assert line.split()[1:] == ["none", "flag"]
