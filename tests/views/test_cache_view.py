"""The entries of the prefix cache, as a list and as the tree that they are."""

import pytest

from daemon.status import CacheContents
from daemon.views.cache import cache_view
from tests.views.examples import CACHE, CONTENTS, UUID, WIDTHS, entry, joined, shown


def lines_of(contents, width=80):
    """The drawing alone: tokens with the rails before them."""
    text = shown(cache_view(contents, as_tree=True), width)
    drawing = text.split("line above\n")[1].splitlines()
    return [line.split("+")[0].rstrip() if "+" in line else line.strip() for line in drawing]


def test_an_entry_shows_what_it_holds_and_whose_it_is():
    text = shown(cache_view(CONTENTS))
    assert "3 of 9 entries" in text
    assert "9,000     3,400  3.4 MB      7    5m   20s   turn end of main, live" in text
    assert "inuseby1" in joined(cache_view(CONTENTS))
    assert "head of main, checkpoint" in text
    words = " ".join(text.split())
    assert "prompt end of sub, live for main" in words
    assert "branching point 4,000" in words


def test_the_entry_used_last_stands_first():
    entries = tuple(entry(n, None, n, n, idle_seconds=100.0 - n) for n in range(1, 6))
    text = shown(cache_view(CacheContents(CACHE, entries)))
    listed = text.split("what it is")[1].splitlines()[1:]
    assert [line.split()[0] for line in listed] == ["5", "4", "3", "2", "1"]


def test_the_tree_goes_straight_down_where_most_is_and_aside_where_it_parts():
    assert [line for line in lines_of(CONTENTS) if "●" in line] == [
        "      300  ●",
        "    4,000  ●",
        "    6,000  ├─●",
        "    5,000  ●",
        "    5,700  ├─●",
        "    5,600  ●",
        "    9,000  ●",
    ]


def test_what_hangs_on_a_branch_stands_beside_the_rail_that_goes_on():
    entries = (
        entry(1, None, 10, 10),
        entry(2, 1, 20, 10),
        entry(3, 2, 30, 10),
        entry(4, 1, 21, 11),
        entry(5, 4, 31, 10),
        entry(6, 5, 41, 10),
    )
    assert lines_of(CacheContents(CACHE, entries)) == [
        "       10  ●",
        "       20  ├─●",
        "       30  │ ●",
        "       21  ●",
        "       31  ●",
        "       41  ●",
    ]


def test_two_beginnings_are_set_apart():
    entries = (entry(1, None, 10, 10), entry(2, None, 20, 20))
    assert lines_of(CacheContents(CACHE, entries)) == ["       10  ●", "", "       20  ●"]


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_conversation_is_a_straight_line(width):
    chain = tuple(entry(n, n - 1 or None, n * 1_000, 1_000) for n in range(1, 200))
    drawn = [line for line in lines_of(CacheContents(CACHE, chain), width) if "●" in line]
    assert len(drawn) == 199
    assert {line.index("●") for line in drawn} == {11}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_tree_with_forks_at_every_turn_stays_narrow(width):
    """Depth of the drawing is a matter of the logarithm: a full binary tree is the worst."""
    full = tuple(entry(n, n // 2 or None, n * 10, 10, session=UUID) for n in range(1, 256))
    parents_first = sorted(full, key=lambda each: each.id)
    contents = CacheContents(CACHE, tuple(parents_first))
    text = shown(cache_view(contents, as_tree=True), width)
    assert text.count("●") == 255
    assert max(line.index("●") for line in text.splitlines() if "●" in line) <= 11 + 2 * 7


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("as_tree", [False, True])
def test_no_name_is_cut(width, as_tree):
    together = joined(cache_view(CONTENTS, as_tree=as_tree), width).replace("│", "")
    assert f"partialof{UUID},live" in together
    assert "…" not in together


def test_an_empty_cache_says_so():
    assert "Nothing is kept yet." in shown(cache_view(CacheContents()))
