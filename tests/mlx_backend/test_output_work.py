"""What an answer's token costs does not grow with the answer: nothing is looked at again."""

from __future__ import annotations

import tracemalloc

import pytest

from mlx_backend.messages import AnswerForm
from mlx_backend.output.answer_output import AnswerOutput
from tests.mlx_backend.answers import NAMES, TOOLS, made, sampled, written

FORM = AnswerForm(stop=("\n\nHuman:", "<|stop|>"), tools=TOOLS)
LINE = '    if x < 3 and y == "it\'s":  # </div> `code` {1, 2} \\d\n'
MOST_HELD = 120  # characters: a mark, or a closing tag and what has to follow it


@pytest.mark.parametrize("has_marks", [True, False], ids=["marks", "spelled"])
@pytest.mark.parametrize("name", NAMES)
def test_no_token_makes_an_answer_look_back(name: str, has_marks: bool) -> None:
    """All that is ever looked at is on the tape: what came with the token, and what is held."""
    format = made(name, has_marks=has_marks)
    call = written(name, ("write_file", {"path": "a", "content": LINE * 150}))
    answer = sampled(call, format.marks, (3,))
    output = AnswerOutput(answer.decoder(), format.reader, FORM)
    held = []
    for token in answer.ids:
        output.push((token,))
        held.append(len(output.tape.text) - output.tape.at)
    assert max(held) <= MOST_HELD


@pytest.mark.parametrize("name", NAMES)
def test_a_token_in_the_middle_of_a_long_argument_takes_no_more_memory_than_early(
    name: str,
) -> None:
    """Whoever looked at all of it would copy it."""
    format = made(name, has_marks=True)
    call = written(name, ("write_file", {"path": "a", "content": LINE * 400}))
    answer = sampled(call, format.marks, (4,))
    output = AnswerOutput(answer.decoder(), format.reader, FORM)
    middle = len(answer.ids) * 3 // 4
    output.push(answer.ids[:middle])
    tracemalloc.start()
    try:
        for token in answer.ids[middle : middle + 60]:
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            output.push((token,))
            _, peak = tracemalloc.get_traced_memory()
            assert peak - before < 6_000
    finally:
        tracemalloc.stop()
