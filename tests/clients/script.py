"""What the model of these tests says: a function of the prompt's text alone.

A user's text names a script, as in `[script:make-a-file]`. The model follows the one that was named
last: its first step answers the message that named it, and each later turn takes the next step. So
a resumed session, a retry and a sub-agent (whose task names a script of its own) all find their
place without any state. Where nobody offers tools, the model is asked for a title or the like.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
LOST = "There is nothing in my script for this."
TITLE = '{"title": "A short title"}'
RECALLED = "what the prompt says"
_NAMED = re.compile(r"\[script:([\w-]+)\]")


@dataclass(frozen=True)
class Call:
    """A call of the client's tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One answer: a thought, a text and calls, each of which may be missing.

    `recall` is a pattern: what its group matches last in the prompt stands in for RECALLED.
    """

    say: str = ""
    calls: Sequence[Call] = ()
    think: str = ""
    recall: str = ""
    token_seconds: float = 0.0

    @property
    def text(self) -> str:
        thought = f"<think>\n{self.think}\n</think>\n\n" if self.think else ""
        calls = [
            "<tool_call>\n"
            + json.dumps({"name": call.name, "arguments": dict(call.arguments)})
            + "\n</tool_call>"
            for call in self.calls
        ]
        return thought + "\n".join(([self.say] if self.say else []) + calls)


Scripts: TypeAlias = Mapping[str, Sequence[Step]]


@dataclass(frozen=True)
class Actor:
    """Answers prompts in ChatML by the scripts."""

    scripts: Scripts
    steps_without_tools: Step = field(default_factory=lambda: Step(say=TITLE))

    def step(self, prompt: str) -> Step:
        turns = [part.split(TURN_END)[0] for part in prompt.split(TURN_START)[1:]]
        named = [
            (index, names[-1])
            for index, turn in enumerate(turns)
            if turn.startswith("user\n") and (names := _NAMED.findall(turn))
        ]
        if "<tools>" not in prompt and not self._is_plain(named):
            return self.steps_without_tools
        if not named:
            return Step(say=LOST)
        place, name = named[-1]
        answered = sum(turn.startswith("assistant\n") for turn in turns[place + 1 :]) - 1
        steps = self.scripts.get(name, ())
        return steps[answered] if answered < len(steps) else Step(say=LOST)

    def answer(self, prompt: str) -> str:
        step = self.step(prompt)
        found = re.findall(step.recall, prompt) if step.recall else []
        return step.text.replace(RECALLED, found[-1]) if found else step.text

    def _is_plain(self, named: Sequence[tuple[int, str]]) -> bool:
        """Whether the script that was named last calls no tools, so that none are needed."""
        return bool(named) and not any(
            step.calls for step in self.scripts.get(named[-1][1], (Step(calls=(Call("", {}),)),))
        )


def dumped(scripts: Scripts) -> dict[str, Any]:
    return {name: [asdict(step) for step in steps] for name, steps in scripts.items()}


def loaded(scripts: Mapping[str, Any]) -> Scripts:
    return {
        name: [
            Step(**{**step, "calls": tuple(Call(**call) for call in step["calls"])})
            for step in steps
        ]
        for name, steps in scripts.items()
    }
