"""What taking an answer apart costs per token, in the middle of a 50 kB argument and else.

    python -m tests.benchmarks.output [FORMAT…]

Prints microseconds per token for each family's way to write calls: median, mean and the 95th
percentile, of a call that writes a file and of an answer of prose with thoughts before it.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Sequence

from mlx_backend.messages import AnswerForm
from mlx_backend.output.answer_output import AnswerOutput
from mlx_backend.output.formats import AnswerFormat
from tests.mlx_backend.answers import NAMES, TOOLS, made, sampled, written

ARGUMENT_CHARACTERS = 50_000
TOKEN_SIZES = (4, 3, 5, 1, 6, 2, 7)  # bytes, as tokens of source code are long


def file(characters: int) -> str:
    """Text like source code, with quotes, backslashes, tags and line breaks."""
    random.seed(0)
    words = ["self", "return", "'a'", '"b"', "<div>", "</div>", r"\d+", "é", "x = 1", "{", "}", "#"]
    lines = (" " * 4 + " ".join(random.choices(words, k=9)) for _ in range(characters))
    text = ""
    while len(text) < characters:
        text += next(lines) + "\n"
    return text[:characters]


def costs(format: AnswerFormat, text: str, form: AnswerForm) -> list[float]:
    """Microseconds of processor time for each token."""
    answer = sampled(text, format.marks, TOKEN_SIZES)
    output = AnswerOutput(answer.decoder(), format.reader, form)
    found = []
    for token in answer.ids:
        started = time.thread_time_ns()
        output.push((token,))
        found.append((time.thread_time_ns() - started) / 1e3)
    output.finish()
    return found


def show(name: str, found: Sequence[float]) -> None:
    ranked = sorted(found)
    p95 = ranked[len(ranked) * 95 // 100]
    print(
        f"{name:28} {len(found):6} tokens  median {statistics.median(found):5.1f} µs  "
        f"mean {statistics.fmean(found):5.1f} µs  p95 {p95:5.1f} µs  most {ranked[-1]:7.1f} µs"
    )


def measure(name: str) -> None:
    form = AnswerForm(stop=("\n\nHuman:", "<|stop|>"), tools=TOOLS)
    arguments = {"path": "src/a.py", "content": file(ARGUMENT_CHARACTERS), "mode": 644}
    call = written(name, ("write_file", arguments))
    prose = file(ARGUMENT_CHARACTERS // 5)
    for has_marks in (True, False):
        format = made(name, has_marks=has_marks)
        kind = "tokens" if has_marks else "spelled"
        show(f"{name}, marks {kind}", costs(format, call, form))
        if name != "harmony":
            show("    thoughts and prose", costs(format, f"<think>{prose}</think>{prose}", form))


if __name__ == "__main__":
    for chosen in sys.argv[1:] or NAMES:
        measure(chosen)
