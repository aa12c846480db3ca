"""What can go wrong with the service, in words that say what to do: a tree of its own."""

from __future__ import annotations


class ServiceError(Exception):
    """macOS refused, or the service is not there; the message says what to do."""


class NoGuiSession(ServiceError):
    """The account is not logged in at the screen, so that it has no place for its agents."""


class NotPermitted(ServiceError):
    """The service, or a file of it, belongs to another account."""
