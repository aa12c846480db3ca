"""What agents do to a server that does not always run: it is stopped, left alone, or killed.

What was read before has to be there again. After a kill that holds of what had been kept for good
by then: what was being written may be lost, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from daemon.bench.openings import opened
from daemon.bench.texts import Author
from daemon.bench.traffic import Conversation, Interruption, Spelling, Step

TURNS = 3
CHILDREN = 20


def _restarts(author: Author) -> Iterator[Step]:
    """A tool loop by a client that writes calls anew; the daemon is upgraded between its turns."""
    return _loop_with(Interruption.RESTART, author)


def _unloads(author: Author) -> Iterator[Step]:
    """The same, whose user has lunch between its turns."""
    return _loop_with(Interruption.UNLOAD, author)


def _loop_with(interruption: Interruption, author: Author) -> Iterator[Step]:
    talk = opened(author).user(author.prose("fix the failing test", 250))
    for turn in range(TURNS):
        yield (talk.call(f"turn {turn}"),)
        path = f"src/module_{turn}.py"
        results = {path: author.source(path, 400)}
        talk = talk.worked(f"turn {turn}", results, spelling=Spelling.REWRITTEN)
        yield interruption
    yield (talk.request("last"),)


def _forks(author: Author) -> Iterator[Step]:
    """A head of which twenty sub-agents are started, half of them the next morning, all at once;
    then each goes on."""
    head = opened(author, system=500, tools=1500)
    children = [head.user(author.prose(f"part {n}", 150)) for n in range(CHILDREN)]
    half = CHILDREN // 2
    yield from _asked(children[:half], 0)
    yield Interruption.RESTART
    yield from _asked(children[half:], half)
    yield Interruption.RESTART
    for first in range(0, CHILDREN, 5):
        yield tuple(
            children[n]
            .worked(f"child {n}", {f"part_{n}.py": author.source(f"part_{n}.py", 100)})
            .request(f"child {n} done")
            for n in range(first, first + 5)
        )


def _asked(children: Sequence[Conversation], first: int) -> Iterator[Step]:
    for begin in range(0, len(children), 5):
        wave = children[begin : begin + 5]
        yield tuple(child.request(f"child {first + begin + n}") for n, child in enumerate(wave))


def _kill(author: Author) -> Iterator[Step]:
    """Turns that were saved, and one that was being written when the power went."""
    talk = opened(author).user(author.prose("migrate the module", 250))
    for turn in range(TURNS):
        yield (talk.call(f"turn {turn}"),)
        path = f"src/module_{turn}.py"
        talk = talk.worked(f"turn {turn}", {path: author.source(path, 400)})
        yield Interruption.SAVE
        yield (talk.request(f"lost {turn}"),)
        yield Interruption.KILL
    yield (talk.request("last"),)


INTERRUPTED: dict[str, Callable[[Author], Iterator[Step]]] = {
    "restart between turns": _restarts,
    "unload between turns": _unloads,
    "20 forks across a restart": _forks,
    "kill while it writes": _kill,
}
