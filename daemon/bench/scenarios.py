"""What coding agents do to a server, as data: one function per scenario.

Each has the shape that was seen on the wire: a long head of system text and tool definitions,
tool calls with arguments, tool results that are files, and the whole history in every request.
Where a tool is called once, the model is made to call it; several calls at once are scripted.
Those during which the server is stopped or idle are in `interrupted`.
Sizes are tokens, chosen so that a tiny model plays all of them in a minute or two; `Sizes.scale`
stretches the texts for models and machines that can do more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from daemon.bench.interrupted import INTERRUPTED
from daemon.bench.openings import opened
from daemon.bench.texts import Author
from daemon.bench.traffic import Cancel, Conversation, Scenario, Spelling, Step, Wave


@dataclass(frozen=True, slots=True)
class Sizes:
    """How long texts are. `seed` makes another run's texts share nothing with this one's."""

    characters_per_token: float = 1.0
    scale: float = 1.0
    seed: str = "0"

    def author(self, scenario: str) -> Author:
        return Author(f"{self.seed}/{scenario}", self.characters_per_token * self.scale)


def all_scenarios(sizes: Sizes) -> tuple[Scenario, ...]:
    """Every scenario, in the order of the report."""
    return tuple(
        Scenario(name, tuple(steps(sizes.author(name)))) for name, steps in SCENARIOS.items()
    )


def _retry_in_decode(author: Author) -> Iterator[Wave]:
    """The user interrupts an answer, sends the same again, then goes on from a partial one."""
    asked = opened(author).user(author.prose("first task", 300))
    yield (asked.request("cut", 400, Cancel(after_deltas=12)),)
    yield (asked.call("again"),)
    worked = asked.worked("again", {"src/a.py": author.source("src/a.py", 500)})
    yield (worked.request("cut later", 400, Cancel(after_deltas=12)),)
    noted = worked.answered("cut later").user(author.prose("interrupted by the user", 60))
    yield (noted.request("after the note"),)


def _retry_in_read(author: Author) -> Iterator[Wave]:
    """A long read is cancelled at 60 %, sent again, and the conversation goes on."""
    asked = opened(author).user(author.source("pasted/log.txt", 7000))
    yield (asked.request("cut", cancel=Cancel(at_share_read=0.6)),)
    yield (asked.request("again"),)
    yield (asked.answered("again").user(author.prose("next", 200)).request("next"),)


def _tool_loop(author: Author) -> Iterator[Wave]:
    """One task, ten tool calls, each result a file."""
    return _loop(author, Spelling.AS_SENT)


def _rewritten_calls(author: Author) -> Iterator[Wave]:
    """The same by a client that parses the arguments and writes them anew."""
    return _loop(author, Spelling.REWRITTEN)


def _loop(author: Author, spelling: Spelling) -> Iterator[Wave]:
    talk = opened(author).user(author.prose("fix the failing test", 250))
    for turn in range(10):
        yield (talk.call(f"turn {turn}"),)
        path = f"src/module_{turn}.py"
        results = {path: author.source(path, 350 + 40 * turn)}
        talk = talk.worked(f"turn {turn}", results, spelling=spelling)
    yield (talk.request("last"),)


def _trimmed_answers(author: Author) -> Iterator[Wave]:
    """Ten answers in text that come back without the white space around them."""
    talk = opened(author)
    for turn in range(10):
        talk = talk.user(author.prose(f"question {turn}", 200))
        asked = talk.request(f"turn {turn}", max_tokens=16)
        yield (replace(asked, blanks=" \n"),)
        talk = talk.answered(f"turn {turn}", spelling=Spelling.REWRITTEN)


def _calls_after_thoughts(author: Author) -> Iterator[Wave]:
    """Two tasks of five calls, with thoughts before them that come back within a task."""
    talk = opened(author)
    for task in range(2):
        talk = talk.user(author.prose(f"task {task}", 250))
        for turn in range(5):
            label, path = f"task {task} turn {turn}", f"task_{task}/{turn}.py"
            yield (replace(talk.call(label), thinks=True),)
            results = {path: author.source(path, 300)}
            talk = talk.worked(label, results, spelling=Spelling.REWRITTEN)
        yield (talk.request(f"task {task} done"),)
        talk = talk.answered(f"task {task} done")


def _sub_agents_in_turn(author: Author) -> Iterator[Wave]:
    """A parent starts four sub-agents one after the other; they share a head of their own."""
    parent = opened(author).user(author.prose("review the project", 250))
    yield (parent.request("parent"),)
    head = opened(author, "explorer")
    for n in range(4):
        child = head.user(author.prose(f"look at part {n}", 200))
        yield (child.call(f"child {n}"),)
        path = f"part_{n}/main.py"
        child = child.worked(f"child {n}", {path: author.source(path, 500)})
        yield (child.request(f"child {n} done"),)
    report = {f"report {n}": author.prose(f"report {n}", 150) for n in range(4)}
    yield (parent.worked("parent", report).request("parent done"),)


def _sub_agents_at_once(author: Author) -> Iterator[Wave]:
    """Four sub-agents start together on a head that nobody has read, then go on together."""
    children = [
        opened(author, system=1000, tools=2000).user(author.prose(f"part {n}", 200))
        for n in range(4)
    ]
    yield tuple(child.call(f"child {n}") for n, child in enumerate(children))
    worked = [
        child.worked(f"child {n}", {f"part_{n}.py": author.source(f"part_{n}.py", 400)})
        for n, child in enumerate(children)
    ]
    yield tuple(child.request(f"child {n} done") for n, child in enumerate(worked))


def _fork(author: Author) -> Iterator[Wave]:
    """A conversation of six turns is taken up again at its third, twice, with other words."""
    talk = opened(author).user(author.prose("start", 250))
    middle = talk
    for turn in range(6):
        yield (talk.request(f"turn {turn}"),)
        middle = talk.answered(f"turn {turn}") if turn == 2 else middle
        talk = talk.answered(f"turn {turn}").user(author.prose(f"go on {turn}", 300))
    for n in range(2):
        fork = middle.user(author.prose(f"other way {n}", 300))
        yield (fork.call(f"fork {n}"),)
        path = f"fork_{n}.py"
        fork = fork.worked(f"fork {n}", {path: author.source(path, 400)})
        yield (fork.request(f"fork {n} done"),)


def _regenerate_undo_edit(author: Author) -> Iterator[Wave]:
    """The same prompt again, one exchange taken back, an earlier message in other words."""
    first = opened(author).user(author.prose("first", 400))
    yield (first.request("first"),)
    second = first.answered("first").user(author.prose("second", 400))
    yield (second.request("second"),)
    third = second.answered("second").user(author.prose("third", 400))
    yield (third.request("third"),)
    yield (third.request("regenerate"),)
    yield (second.request("undo"),)
    yield (second.answered("undo").user(author.prose("another third", 400)).request("instead"),)
    edited = first.answered("first").user(author.prose("edited second", 400))
    yield (edited.request("edit"),)
    yield (opened(author).user(author.prose("edited first", 400)).request("edit the first"),)


def _ring(author: Author) -> Iterator[Wave]:
    """Fourteen sessions with a common head take turns, three rounds."""
    talks = [opened(author).user(author.prose(f"session {n}", 250)) for n in range(14)]
    for turn in range(3):
        for n, talk in enumerate(talks):
            label = f"session {n} turn {turn}"
            yield (talk.call(label),)
            path = f"session_{n}/file_{turn}.py"
            talks[n] = talk.worked(label, {path: author.source(path, 250)})


def _side_calls(author: Author) -> Iterator[Wave]:
    """Twelve small calls without tools (titles, summaries) between two turns of a session."""
    main = opened(author).user(author.prose("the task", 600))
    yield (main.call("main"),)
    for n in range(12):
        side = Conversation().system(author.prose("write a title", 120))
        yield (side.user(author.prose(f"text {n}", 150)).request(f"side {n}", 6),)
    yield (main.worked("main", {"a.py": author.source("a.py", 600)}).request("main again"),)


def _compaction(author: Author) -> Iterator[Wave]:
    """A history is summed up with the same head and tools, and the summary replaces it."""
    head = opened(author)
    talk = head.user(author.prose("the task", 250))
    for turn in range(4):
        yield (talk.call(f"turn {turn}"),)
        path = f"file_{turn}.py"
        talk = talk.worked(f"turn {turn}", {path: author.source(path, 600)})
    yield (talk.request("turn 4"),)
    summing = talk.answered("turn 4").user(author.prose("sum up all of the above", 400))
    yield (summing.request("summary", 24),)
    talk = head.user(author.prose("summary of the work so far", 500))
    for turn in range(5, 8):
        yield (talk.call(f"turn {turn}"),)
        path = f"file_{turn}.py"
        talk = talk.worked(f"turn {turn}", {path: author.source(path, 400)})


def _tools_in_front(author: Author) -> Iterator[Wave]:
    """Large tool definitions, small texts, and every request ends with several tool results."""
    tools = author.tools("agent", 12, 3000)
    for session in range(2):
        head = Conversation(tools).system(author.prose("short instructions", 80))
        talk = head.user(author.prose(f"task {session}", 100))
        for turn in range(4):
            label = f"session {session} turn {turn}"
            yield (talk.request(label),)
            paths = [f"{session}/{turn}/{name}.py" for name in "abc"]
            talk = talk.worked(label, {path: author.source(path, 150) for path in paths})
        yield (talk.request(f"session {session} last"),)


def _thinking_dropped(author: Author) -> Iterator[Wave]:
    """Thinking is sent back within a task; at the next user message the template drops it."""
    talk = opened(author)
    for task in range(3):
        talk = talk.user(author.prose(f"task {task}", 250))
        for turn in range(2):
            label = f"task {task} turn {turn}"
            yield (talk.request(label),)
            path = f"task_{task}/{turn}.py"
            thought = author.prose(f"thought {task} {turn}", 150)
            talk = talk.worked(label, {path: author.source(path, 300)}, thought)
        yield (talk.request(f"task {task} done"),)
        talk = talk.answered(f"task {task} done", author.prose(f"last thought {task}", 100))


def _own_system_text(author: Author) -> Iterator[Wave]:
    """Sub-agents carry the parent's tools under a system text of their own."""
    parent = opened(author).user(author.prose("the task", 250))
    yield (parent.request("parent"),)
    for n in range(3):
        own = Conversation(parent.tools).system(author.prose(f"sub-agent {n} instructions", 300))
        child = own.user(author.prose(f"part {n}", 200))
        yield (child.call(f"child {n}"),)
        path = f"part_{n}.py"
        child = child.worked(f"child {n}", {path: author.source(path, 400)})
        yield (child.request(f"child {n} done"),)
    reports = {f"report {n}": author.prose(f"report {n}", 150) for n in range(3)}
    yield (parent.worked("parent", reports).request("parent done"),)


def _memory(author: Author) -> Iterator[Wave]:
    """Twenty sub-agents on one head: what is kept should be the distinct tokens, once."""
    head = opened(author, system=500, tools=1500)
    for first in range(0, 20, 5):
        children = [head.user(author.prose(f"part {n}", 150)) for n in range(first, first + 5)]
        yield tuple(child.request(f"child {first + n}") for n, child in enumerate(children))


SCENARIOS: dict[str, Callable[[Author], Iterator[Step]]] = {
    "cancel in decode": _retry_in_decode,
    "cancel at 60 % of a read": _retry_in_read,
    "tool loop of 10": _tool_loop,
    "tool loop, calls rewritten": _rewritten_calls,
    "calls after thoughts": _calls_after_thoughts,
    "answers trimmed": _trimmed_answers,
    "4 sub-agents in turn": _sub_agents_in_turn,
    "4 sub-agents at once, cold": _sub_agents_at_once,
    "fork in the middle": _fork,
    "regenerate, undo, edit": _regenerate_undo_edit,
    "ring of 14 sessions": _ring,
    "12 side calls": _side_calls,
    "compaction in the middle": _compaction,
    "tools in front": _tools_in_front,
    "earlier thinking dropped": _thinking_dropped,
    "own system, same tools": _own_system_text,
    "memory: 20 on one head": _memory,
    **INTERRUPTED,
}
