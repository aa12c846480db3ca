"""Numbers, sizes, times and shares, as people read them."""

import pytest

from daemon.views import words


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (99_499, "99.5 kB"),
        (123_456, "123 kB"),
        (999_600, "1.0 MB"),
        (5_000_000_000_000, "5.0 TB"),
    ],
)
def test_sizes_have_the_unit_that_fits(number, text):
    assert words.size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, ""),
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (0.9999, "1.0 s"),
        (59.94, "59.9 s"),
        (100.0, "1m 40s"),
        (3599.7, "1h 0m"),
        (180_000.0, "2d 2h"),
    ],
)
def test_durations_have_the_unit_that_fits(seconds, text):
    assert words.duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (9_999_999, "9,999,999"), (13_400_000, "13.4M"), (12_000_000_000, "12.0G")],
)
def test_counts_are_exact_while_they_fit_a_column(number, text):
    assert words.count(number) == text
    assert len(text) <= 9


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "-"), (0, 9, "0%"), (1, 9_999, "1%"), (9_998, 9_999, "99%"), (9, 9, "100%")],
)
def test_only_all_is_a_hundred_per_cent_and_only_nothing_none(part, whole, text):
    assert words.share(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0s"), (59.9, "59s"), (60, "1m"), (7_300, "2h"), (200_000, "2d")]
)
def test_ages_have_one_unit(seconds, text):
    assert words.age(seconds) == text
