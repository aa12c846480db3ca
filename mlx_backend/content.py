"""What clients write, made fit for a template: checked, and with its control tokens broken.

Every string of a request comes through here once. Long ones are remembered, since an agent sends
its whole history with each turn. Raises PromptRejected with the field at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mlx_backend.control import ControlTokens, map_strings
from mlx_backend.digests import number_of
from mlx_backend.errors import PromptRejected
from mlx_backend.journal import NO_NOTES, Notes, Value
from mlx_backend.memo import Memo
from mlx_backend.schemas import resolved_tool

_MEMO_CHARACTERS = 8_000_000
_REMEMBERED = range(256, _MEMO_CHARACTERS // 2)
"""Shorter texts are cheaper to look at again; longer ones would push out all others."""
_MEMO_TOOLS = 4096


class Content:
    """Masks the strings of requests for one tokenizer. Thread-safe."""

    KIND = "tool"  # of its notes

    def __init__(self, control: ControlTokens, notes: Notes = NO_NOTES) -> None:
        self._control = control
        self._notes = notes
        self._texts: Memo[str, str] = Memo(_MEMO_CHARACTERS, _characters)
        self._arguments: Memo[str, Any] = Memo(_MEMO_CHARACTERS, _characters)
        self._tools: Memo[str, tuple[str, Any]] = Memo(_MEMO_TOOLS)

    def text(self, value: object, field: str) -> str:
        """A string as content; None is ""."""
        if value is None:
            return ""
        if not isinstance(value, str):
            raise PromptRejected("This has to be text.", field)
        if len(value) not in _REMEMBERED:
            return self._masked(value, field)
        masked = self._texts.get(value)
        if masked is None:
            masked = self._masked(value, field)
            self._texts.put(value, masked)
        return masked

    def data(self, value: object, field: str) -> Any:
        """JSON data with every string in it, keys included, as content."""
        try:
            return map_strings(value, lambda text: self.text(text, field))
        except RecursionError:
            raise PromptRejected("This is nested too deeply.", field) from None

    def arguments(self, value: object, field: str) -> dict[str, Any] | str:
        """A call's arguments as a mapping; text that is not a JSON object stays text."""
        if not value:
            return {}
        if isinstance(value, Mapping):
            return dict(self.data(value, field))
        if not isinstance(value, str):
            raise PromptRejected("Arguments have to be a JSON object.", field)
        read: dict[str, Any] | str | None = self._arguments.get(value)
        if read is None:
            parsed = _json_object(value)
            read = self.text(value, field) if parsed is None else dict(self.data(parsed, field))
            self._arguments.put(value, read)
        return read

    def tool(self, tool: Mapping[str, Any], field: str) -> tuple[str, Mapping[str, Any]]:
        """A tool's key and what the template gets: of equal ones, the one that came first, with
        its schema's references resolved."""
        try:
            key = json.dumps(tool, sort_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise PromptRejected("This is not JSON data.", field) from error
        known = self._tools.get(key)
        if known is None:
            known = json.dumps(tool), self.data(_resolved(tool, field), field)
            self._tools.put(key, known)
        spelled, first = known
        self._notes.add(self.KIND, number_of(key), lambda: {"tool": spelled})
        return key, first

    def restore(self, value: Value) -> None:
        """Take back what was noted. Raises as odd data does."""
        self.tool(dict(json.loads(value["tool"])), "tools")

    def _masked(self, text: str, field: str) -> str:
        if not text.isascii():
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                raise PromptRejected(
                    f"Half of a surrogate pair at character {error.start}: this is not text.", field
                ) from None
        return self._control.as_content(text)


def _resolved(tool: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    try:
        return resolved_tool(tool)
    except RecursionError:
        raise PromptRejected("This is nested too deeply.", field) from None


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, dict) else None


def _characters(key: str, value: object) -> int:
    return len(key)
