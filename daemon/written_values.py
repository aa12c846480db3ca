"""How settings are written: text to value, refused in words that say what is expected instead."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from typing import Any

BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}

SECONDS_PER_YEAR = 366 * 24 * 3600
SECONDS_PER_UNIT = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
NEVER, NONE = "never", "none"
DEFAULT_PORTS = {"http": ":80", "https": ":443"}

Parser = Callable[[str], Any]
"""Text to value. Raises ValueError with what is expected instead, as in "a whole number"."""


def text(raw: str) -> str:
    if not raw.strip():
        raise ValueError("some text")
    return raw.strip()


def whole_number(minimum: int, maximum: int | None = None) -> Parser:
    """A parser of whole numbers within bounds, both included."""
    expected = f"a whole number from {minimum} to {maximum}"
    if maximum is None:
        expected = f"a whole number, {minimum} or more"

    def parse(raw: str) -> int:
        if not re.fullmatch(r"\s*[0-9]{1,18}\s*", raw):
            raise ValueError(expected)
        number = int(raw)
        if number < minimum or (maximum is not None and number > maximum):
            raise ValueError(expected)
        return number

    return parse


def byte_size(raw: str) -> int:
    """`2GB` (10⁹), `2GiB` (2³⁰), `1.5gb` or plain bytes."""
    matched = re.fullmatch(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)\s*", raw)
    if not matched or matched[2].upper() not in BYTES_PER_UNIT:
        raise ValueError("a size such as 2GB, 512MiB or a number of bytes")
    return int(float(matched[1]) * BYTES_PER_UNIT[matched[2].upper()])


def or_none(parse: Parser) -> Parser:
    """Also the word `none`, which takes back what a lower source says."""

    def parse_or_none(raw: str) -> Any:
        return None if raw.strip().lower() == NONE else parse(raw)

    return parse_or_none


def absolute_path(raw: str) -> str:
    """A service has no folder of its own that others could begin at."""
    path = os.path.expanduser(raw.strip())
    if not os.path.isabs(path):
        raise ValueError("an absolute path, such as ~/keys/mlxd")
    return path


def address(raw: str) -> str:
    """A literal address: what a name means may change, and so who can ask."""
    written = raw.strip().strip("[]")
    if written.lower() == "localhost":
        return "127.0.0.1"
    try:
        return str(ipaddress.ip_address(written))
    except ValueError:
        raise ValueError("an address, such as 192.168.1.5 or 0.0.0.0") from None


def origin_list(raw: str) -> str:
    """`https://name:port,…`, as browsers write origins; never `*`."""
    return ",".join(sorted({_origin(each.strip().lower()) for each in raw.split(",")}))


def _origin(written: str) -> str:
    matched = re.fullmatch(r"([a-z][a-z0-9+.-]*)://([^\s/?#@*,]+)/?", written)
    if not matched:
        raise ValueError("a list of origins, such as https://chat.example,http://localhost:3000")
    scheme, place = matched[1], matched[2]
    return f"{scheme}://{place.removesuffix(DEFAULT_PORTS.get(scheme, ' '))}"


def duration(raw: str) -> str:
    """`90`, `90s`, `30m`, `2h`, `1d` or `never`, as it was written."""
    words = raw.strip().lower()
    if words != NEVER and not re.fullmatch(r"[0-9]{1,9}[smhd]?", words):
        raise ValueError("seconds, a time such as 30m or 2h, or never")
    return words


def seconds_in(words: str) -> float | None:
    """What `duration` let pass, in seconds; None for never."""
    if words == NEVER:
        return None
    return float(words.rstrip("smhd")) * SECONDS_PER_UNIT[words.lstrip("0123456789")]


def alias_list(raw: str) -> str:
    """`name=model,name=model`, as it was written but for blanks."""
    pairs = pairs_in(raw)
    if not all(name and model for name, model in pairs):
        raise ValueError("a list such as haiku=Qwen3-4B,gpt-*=owner/model")
    return ",".join(f"{name}={model}" for name, model in pairs)


def pairs_in(raw: str) -> list[tuple[str, str]]:
    """What stands on both sides of each first `=`, "" where there is nothing."""
    split = (pair.partition("=") for pair in raw.split(","))
    return [(name.strip(), model.strip()) for name, _, model in split]


def dotted_name(raw: str) -> str:
    if not re.fullmatch(r"\s*[^\W\d]\w*(\.\w+)*:[^\W\d]\w*(\.\w+)*\s*", raw):
        raise ValueError("a function's dotted name, such as package.module:function")
    return raw.strip()


def one_of(*choices: str, convert: Parser = str) -> Parser:
    """A parser of exactly these words, in any case."""

    def parse(raw: str) -> Any:
        word = raw.strip().lower()
        if word not in choices:
            raise ValueError(" or ".join(choices))
        return convert(word)

    return parse
