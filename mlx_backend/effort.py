"""How much thinking a client wants, in the variables and words of the model's own template.

Every family calls its switch otherwise: a truth value, a mode, a level, a budget of tokens. One is
set only if the template asks for it and the client said something that it can express: a switch
that nobody asked for may put something into the prompt that the next turn does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mlx_backend.messages import Effort

_SWITCHES = ("enable_thinking", "thinking")
_MODES = ("thinking_mode",)
_LEVELS = ("reasoning_effort", "thinking_effort", "reasoning_strength")
_BUDGETS = ("thinking_budget", "reasoning_budget")
VARIABLES = frozenset((*_SWITCHES, *_MODES, *_LEVELS, *_BUDGETS))

_LADDER = ("minimal", "low", "medium", "high", "xhigh", "max")
_COMMON = ("low", "medium", "high")  # what a template takes that only writes the word down
_ON = ("enabled", "thinking", "on", "think")
_OFF = ("disabled", "chat", "none", "no_think", "off", "nothink")
_BUDGET_TOKENS = {"minimal": 512, "low": 1024, "medium": 4096, "high": 16384}


class EffortSwitches:
    """What a template's variables are set to. `words`: those that it compares each one with."""

    def __init__(self, words: Mapping[str, Iterable[str]]) -> None:
        self._words = {name: tuple(words[name]) for name in words if name in VARIABLES}
        self._can_switch = any(name in self._words for name in (*_SWITCHES, *_MODES, *_BUDGETS))

    def options(self, effort: Effort) -> dict[str, Any]:
        """The variables to set; none where the client said nothing."""
        found = {name: self._value(name, effort) for name in self._words}
        return {name: value for name, value in found.items() if value is not None}

    def _value(self, name: str, effort: Effort) -> Any:
        if name in _LEVELS:
            return self._level(name, effort)
        if name in _BUDGETS:
            return 0 if effort.thinking is False else _BUDGET_TOKENS.get(effort.level or "")
        thinks = self._thinks(effort)
        return thinks if name in _SWITCHES or thinks is None else self._mode(name, thinks)

    def _thinks(self, effort: Effort) -> bool | None:
        """Whether to think at all; a level says so only where there is no variable for levels."""
        has_levels = any(name in self._words for name in (*_LEVELS, *_BUDGETS))
        if effort.thinking is not None or effort.level is None or has_levels:
            return effort.thinking
        return effort.level != "minimal"

    def _mode(self, name: str, thinks: bool) -> str | None:
        wanted = _ON if thinks else _OFF
        if not any(word in self._words[name] for word in (*_ON, *_OFF)):
            return None
        return next((word for word in wanted if word in self._words[name]), wanted[0])

    def _level(self, name: str, effort: Effort) -> str | None:
        known = [level for level in _LADDER if level in self._words[name]] or list(_COMMON)
        if effort.thinking is False:
            off = next((word for word in _OFF if word in self._words[name]), None)
            return off or (None if self._can_switch else known[0])
        if effort.level is not None:
            return min(known, key=lambda level: _distance(level, effort.level))
        has_off = any(word in self._words[name] for word in _OFF)
        if effort.thinking and has_off and not self._can_switch:
            return min(known, key=lambda level: _distance(level, "medium"))
        return None


def _distance(level: str, wanted: str | None) -> tuple[int, int]:
    """How far a level is from the wanted one; of two that are as far, the higher is nearer."""
    place = _LADDER.index(wanted) if wanted in _LADDER else _LADDER.index("medium")
    return abs(_LADDER.index(level) - place), -_LADDER.index(level)
