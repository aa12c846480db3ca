"""What a family's way to write tool calls has to know: where one begins, and how it is read.

A format is made once per model and shared by all answers, also between threads: it is immutable.
It says what opens a call (`openings`) and reads one from there (`read`). Everything else is the
pipeline's: what is thought, what is quoted, which names are tools, the numbering of calls, stop
strings, and what becomes of a call that could not be read.

Marks are written in two ways. Where the tokenizer has a mark as one token, only that token counts,
and the text on the tape has MARK before its spelling; elsewhere its characters count. A format
asks its `Spelling` once, when it is made, and compares strings from then on. A mark inside of a
string argument is that string's text, by whichever way it came: who reads the string decides.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from mlx_backend.messages import CallableTool
from mlx_backend.output.tape import MARK, Reading, Tape


class NotACall(Exception):
    """What was begun as a call cannot be read as one: it becomes text, as it was written.

    With `why` the client is warned of it; without, it was no call to begin with. A reader may
    raise it at any time, best before it started a call, for what was told cannot be taken back.
    """

    def __init__(self, why: str = "") -> None:
        super().__init__(why)
        self.why = why


@dataclass(frozen=True, slots=True)
class Spelling:
    """How marks stand on the tape, for a tokenizer with these added tokens."""

    tokens: frozenset[str] = frozenset()

    def __call__(self, mark: str) -> str:
        return MARK + mark if mark in self.tokens else mark


class Calls(Protocol):
    """Where a reader tells what it reads. Calls follow each other: start, add…, finish."""

    @property
    def tools(self) -> Sequence[CallableTool]: ...

    def start(self, name: str) -> CallableTool:
        """A call begins. Raises NotACall if no tool has this name.

        Say it as soon as the name is certain and what follows looks like its arguments.
        """

    def add(self, json: str) -> None:
        """More of the arguments, as JSON text: as soon as it is certain, and in any portions."""

    def finish(self) -> None:
        """The call is whole; what was added is a JSON object (nothing at all counts as {}).

        Say it at the last character that the arguments need, before any closing mark: then an
        answer cut right behind it has the call.
        """


class CallFormat(ABC):
    """One way to write calls. Subclasses are rows of `formats.CALL_FORMATS`."""

    name: ClassVar[str]

    marks: ClassVar[tuple[str, ...]] = ()
    """Every control token that this format's markup uses, as the vocabulary spells it. Those that
    the tokenizer has come with MARK; what is not listed here never does."""

    opening_marks: ClassVar[tuple[str, ...]] = ()
    """Those of `marks` that do nothing but open a call: forbid them, and there is none."""

    openings: tuple[str, ...] = ()
    """Where one of these stands in the answer's text (not in thoughts, not quoted) `read` begins.
    As on the tape: made with the Spelling."""

    first_openings: tuple[str, ...] = ()
    """As `openings`, but only where no text precedes: at the answer's beginning, behind a thought
    or another call. For calls without a mark of their own."""

    think_tags: tuple[tuple[str, str], ...] = ()
    """What opens and closes this family's thoughts, if that is none of `control.THINK_TAGS`."""

    silent_marks: tuple[str, ...] = ()
    """Structure that has no meaning in an answer's text: taken out."""

    def __init__(self, spelled: Spelling) -> None:
        self.spelled = spelled

    @classmethod
    @abstractmethod
    def is_written_by(cls, template: str, added_tokens: Collection[str]) -> bool:
        """Whether a model with this chat template and these added tokens writes so.

        The registry asks in its order and takes the first; so ask for what is unmistakable.
        """

    @abstractmethod
    def read(self, tape: Tape, calls: Calls) -> Reading[None]:
        """Read one call, or a block of several, from its opening (which stands at `tape.at`) up
        to and with its closing mark. What is behind stays on the tape.

        Raises NotACall, with the tape where it was found out. `tape.more` raises OutputEnded when
        the model ended its answer: catch it where the end leaves no doubt what was meant, finish
        the call and return; uncaught, the call is malformed. An answer that is cut short is never
        told to the reader, which is closed where it waits.

        The same characters must give the same calls however they are grouped: decide by what was
        read, never by where the tape ends.
        """

    def grammar(self, tools: Sequence[CallableTool], may_repeat: bool) -> str | None:
        """A Lark grammar (as llguidance reads it, with `%json` for schemas) whose `start` is what
        the model has to write: a call of one of `tools`, or several if `may_repeat`, with white
        space as its template has it. None: calls of this format cannot be enforced.

        `lark` has the pieces: `lark.mark(self.spelled("<tool_call>"))` is that token where the
        tokenizer has it and its characters elsewhere, `lark.json_value(tool.schema)` a schema.
        """
        return None
