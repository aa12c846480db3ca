"""Names of conversations: labels for records and hints for retention, never for matching."""

from __future__ import annotations

from collections import OrderedDict

from daemon.generation import GenerationRequest


class Sessions:
    """The sessions seen of late, by name; the longest unused is forgotten first."""

    def __init__(self, max_sessions: int = 64) -> None:
        self._names: OrderedDict[str, None] = OrderedDict()
        self._max_sessions = max_sessions

    def opens(self, request: GenerationRequest) -> bool:
        """Whether this prompt opens a session; anonymous ones always do. Marks it as open."""
        if request.session is None:
            return True
        is_new = request.session not in self._names
        self._names[request.session] = None
        self._names.move_to_end(request.session)
        if len(self._names) > self._max_sessions:
            self._names.popitem(last=False)
        return is_new


def conversation(request: GenerationRequest) -> str:
    """What the prefix tree accounts this request to; without a session, to itself."""
    return request.session if request.session is not None else f"anonymous {request.id}"
