"""What a backend can refuse or fail at. No mlx here."""

from __future__ import annotations


class BackendError(Exception):
    """Base of everything a backend raises on purpose."""


class ModelNotFound(BackendError):
    """The folder or repository is not on this machine."""


class ModelUnsupported(BackendError):
    """The model is whole, but mlx-lm (or a chosen option, such as `kv_bits`) cannot run it."""


class ModelDamaged(BackendError):
    """The model's files are missing, cut short or contradict each other."""


class PromptRejected(BackendError):
    """A prompt that cannot be rendered or encoded; the client's fault.

    `field` is the request field at fault in dotted form (`messages[2].content`), "" if unknown.
    """

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(PromptRejected):
    """A prompt of more than `tokens` tokens, which is as far as it was counted: it cannot fit the
    context of `limit`."""

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"The prompt has more than {tokens} tokens; the context has {limit}.")
        self.tokens = tokens
        self.limit = limit


class ConstraintRejected(BackendError):
    """A schema or a forced call that cannot be enforced, or is too large; the client's fault."""


class EncodingStopped(BackendError):
    """`should_stop` said so: nobody waits for the prompt any more."""


class RestoreFailed(BackendError):
    """A snapshot does not fit the model or disagrees with its key; drop it and read instead."""


class StateMismatch(BackendError):
    """A row's layers disagree about how many tokens they hold; nothing may be stored from it."""


class StepFailed(BackendError):
    """A model step raised. Every row in it is lost and nothing may be committed from them."""
