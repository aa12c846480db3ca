"""One tree for everything that can go wrong, with the HTTP status and the words a client reads."""

from __future__ import annotations


class DaemonError(Exception):
    """Base of what a client can be told. The message says what is wrong and what to do.

    `status` is the HTTP status, `kind` the OpenAI error type, `code` its machine-readable code,
    `field` the request field at fault, `retry_after` seconds for 429 and 503.
    """

    status = 500
    kind = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after = retry_after
        if code is not None:
            self.code = code


class BadRequest(DaemonError):
    """The body or one of its fields is not acceptable; `field` names it."""

    status = 400
    kind = "invalid_request_error"


class ContextOverflow(BadRequest):
    """The prompt does not fit the context; found before any reading.

    `tokens` of the prompt, or more if `is_at_least`, and the `maximum`; None where not known.
    """

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        tokens: int | None = None,
        maximum: int | None = None,
        is_at_least: bool = False,
    ) -> None:
        super().__init__(message, field=field)
        self.tokens = tokens
        self.maximum = maximum
        self.is_at_least = is_at_least


class Unauthorized(DaemonError):
    """The daemon's own token is missing or wrong; asked for by few routes, none for agents."""

    status = 401
    kind = "authentication_error"
    code = "token_required"


class InvalidApiKey(DaemonError):
    """An API key is set, and the request does not show it."""

    status = 401
    kind = "authentication_error"
    code = "invalid_api_key"


class MemoryOverflow(ContextOverflow):
    """The prompt cannot fit the memory, whatever gave way; as with the context, shorten it."""


class Forbidden(DaemonError):
    """Host or Origin is not this machine's own."""

    status = 403
    kind = "forbidden"


class NotFound(DaemonError):
    """No such route, model or thing."""

    status = 404
    kind = "not_found_error"


class MethodNotAllowed(DaemonError):
    status = 405
    kind = "invalid_request_error"


class BodyTooSlow(DaemonError):
    """The body did not come to its end in time; the connection is closed with the answer."""

    status = 408
    kind = "invalid_request_error"
    code = "body_too_slow"


class BodyTooLarge(DaemonError):
    status = 413
    kind = "invalid_request_error"
    code = "body_too_large"


class UnsupportedMediaType(DaemonError):
    status = 415
    kind = "invalid_request_error"


class UpgradeRefused(DaemonError):
    """Only HTTP is spoken here."""

    status = 426
    kind = "invalid_request_error"
    code = "upgrade_refused"


class Overloaded(DaemonError):
    """The queue is full; always says when to come back."""

    status = 429
    kind = "rate_limit_error"
    code = "queue_full"


class ModelUnavailable(DaemonError):
    """No model is ready: loading, failed, or closing; always says when to come back."""

    status = 503
    kind = "service_unavailable"
    code = "model_unavailable"


class ModelDoesNotFit(DaemonError):
    """The model's weights are more than there is memory for; trying again will not help."""

    status = 400
    kind = "invalid_request_error"
    code = "model_does_not_fit"


class ModelInUse(DaemonError):
    """A model is not unloaded under its requests."""

    status = 409
    kind = "invalid_request_error"
    code = "model_in_use"


class GenerationFailed(DaemonError):
    """A step failed or the daemon stopped under a running request."""

    status = 500
    code = "generation_failed"


class DiskNotCleared(DaemonError):
    """Something that was to be deleted is still on disk."""

    code = "disk_not_cleared"


class ConfigurationError(Exception):
    """A setting, port or model that cannot work; the command line prints it and exits 78."""


class CommandFailed(Exception):
    """A command of the command line cannot go on for a known reason; it exits 1."""


class NotRunning(CommandFailed):
    """Nothing listens where the daemon should."""


class NotAnswering(CommandFailed):
    """Something listens on the port, but does not answer as a daemon of this version does."""


class Refused(CommandFailed):
    """The daemon answered no; `status` is the HTTP status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
