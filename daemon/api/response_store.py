"""Responses that a later request may go on from, as long as there is room for them.

Kept in memory only. What was kept first goes first: a conversation goes on from its latest
response, and each holds its whole conversation. A response is looked up without being touched, so
that requests may be parsed in any thread; only the event loop keeps and forgets.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from daemon.api.response_object import response_of
from daemon.errors import NotFound

MAX_RESPONSES = 1_000
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Kept:
    """`body` is the response, `items` the conversation with its output in it; both are JSON."""

    body: bytes
    items: bytes

    @property
    def nbytes(self) -> int:
        return len(self.body) + len(self.items)

    def conversation(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = json.loads(self.items)
        return items


class ResponseStore:
    """Never holds more than its limits; a response that exceeds them alone is not kept."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def keep(
        self, body: bytes, items: Sequence[Mapping[str, Any]], response: Mapping[str, Any]
    ) -> None:
        """`response` is what `body` says; its output follows `items` in the conversation."""
        output = response["output"]
        conversation = json.dumps([*items, *output], ensure_ascii=False, separators=(",", ":"))
        kept = Kept(body, conversation.encode())
        if kept.nbytes > self._max_bytes:
            return
        self._kept[response["id"]] = kept
        self.nbytes += kept.nbytes
        while len(self._kept) > self._max_responses or self.nbytes > self._max_bytes:
            self.forget(next(iter(self._kept)))

    def get(self, response_id: str, field: str | None = None) -> Kept:
        """Raises NotFound, which names the request's `field`."""
        kept = self._kept.get(response_id)
        if kept is None:
            raise NotFound(
                f"There is no response `{response_id[:200]}` here: it was not stored, or was "
                "dropped for later ones. Send the conversation in `input`.",
                field=field,
                code="previous_response_not_found" if field else "response_not_found",
            )
        return kept

    def item(self, item_id: str, field: str | None = None) -> dict[str, Any]:
        """An item of a kept response's output. Raises NotFound."""
        owner = self._kept.get(response_of(item_id))
        for item in owner.conversation() if owner is not None else ():
            if item.get("id") == item_id:
                return item
        raise NotFound(
            f"There is no item `{item_id[:200]}` here: its response was not stored, or was dropped "
            "for later ones. Send the item itself.",
            field=field,
            code="item_not_found",
        )

    def forget(self, response_id: str) -> None:
        """Raises NotFound."""
        kept = self.get(response_id)
        del self._kept[response_id]
        self.nbytes -= kept.nbytes
