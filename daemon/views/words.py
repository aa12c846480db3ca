"""Numbers, times and names, as people read them."""

from __future__ import annotations

from collections.abc import Iterable

EXACT_BELOW = 10_000_000
UNIT_NAMES = ("kB", "MB", "GB", "TB")


def count(number: int) -> str:
    """Exact up to nine characters, then in millions: whole numbers are in `--json`."""
    if abs(number) < EXACT_BELOW:
        return f"{number:,}"
    millions = number / 1e6
    return f"{millions:,.1f}M" if millions < 9_999.95 else f"{millions / 1000:,.1f}G"


def counted(number: int, one: str, many: str | None = None) -> str:
    """`1 entry`, `2 entries`: a number with its noun."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def size(number: int) -> str:
    """Bytes in decimal units, as macOS shows them."""
    amount, unit = float(number), "B"
    for larger in UNIT_NAMES:
        if amount < 999.5:
            break
        amount, unit = amount / 1000, larger
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 99.5 else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """The two largest units that matter, in at most 9 characters; "" where there is none."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes = round(seconds) // 60
    if minutes < 60:
        return f"{minutes}m {round(seconds) % 60}s"
    hours = minutes // 60
    return f"{hours}h {minutes % 60}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def age(seconds: float) -> str:
    """A duration in its largest unit alone, for columns: at most 4 characters in a year."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{int(seconds)}s"


def share(part: int, whole: int) -> str:
    """Per cent, where 100 and 0 mean all and nothing; "-" of nothing."""
    if whole <= 0:
        return "-"
    percent = round(100 * part / whole)
    if 0 < part < whole:
        percent = min(max(percent, 1), 99)
    return f"{percent}%"


def plain(text: str) -> str:
    """Text of unknown origin without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


def listed(parts: Iterable[str], between: str = ", ") -> str:
    return between.join(part for part in parts if part)


def phrase(word: str) -> str:
    """A word of the code (`prompt_end`) as people write it."""
    return word.replace("_", " ")


def short_id(request: str) -> str:
    """As much of a request's id as tells it from others; `mlxd why` takes it."""
    return plain(request.removeprefix("req_"))[:8]
