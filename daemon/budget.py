"""How much memory rows may take: pure arithmetic, in tokens and bytes.

Rows and prefix cache share one budget. A row reserves what it has to hold and one step of growth,
never its `max_tokens`: agents send 32,000 and more with every request and use a few hundred. It
then grows by steps. What a row has to hold are the reused tokens and the new ones alike: reuse
saves the reading, not the memory. Who gives way when a step does not fit is decided in `inference`.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlx_backend.messages import ModelInfo

GROWTH_TOKENS = 1024
ROUNDING_TOKENS = 256
"""Backends round buffers up to as much."""


@dataclass(frozen=True, slots=True)
class Budget:
    """`max_bytes` for all rows and the prefix cache; None for no limit.

    A row keeps `token_bytes` for each token that it has room for, and `whole_bytes` however long
    it is: the state of the layers that do not grow, with the chunk that sliding windows hold
    beside their window while it is read. A row grows by `growth_tokens`. `is_fixed`: the limit was
    given for these alone, so other models' weights take nothing from it.
    """

    max_bytes: int | None
    token_bytes: int
    whole_bytes: int
    growth_tokens: int = GROWTH_TOKENS
    is_fixed: bool = False

    @classmethod
    def of_model(cls, info: ModelInfo, max_bytes: int | None, chunk_tokens: int = 0) -> Budget:
        whole_bytes = info.checkpoint_bytes + chunk_tokens * info.ring_token_bytes
        return cls(max_bytes, info.span_token_bytes, whole_bytes)

    @classmethod
    def without_limit(cls, info: ModelInfo) -> Budget:
        return cls.of_model(info, None)

    def row_room(self, tokens: int, to_come: int) -> int:
        """For how many tokens a row of `tokens` is given room when up to `to_come` will follow."""
        return tokens + min(to_come, self.growth_tokens)

    def row_bytes(self, room: int) -> int:
        """What a row with room for so many tokens takes."""
        rounded = -(-room // ROUNDING_TOKENS) * ROUNDING_TOKENS
        return rounded * self.token_bytes + self.whole_bytes

    def left(self, row_bytes: int, cache_bytes: int) -> int | None:
        """What is free, negative where too much is held; None without a limit."""
        return None if self.max_bytes is None else self.max_bytes - row_bytes - cache_bytes

    def refusal(self, prompt: int, max_tokens: int) -> str | None:
        """Why a prompt can never run, not even alone beside an empty cache; None if it can."""
        needed = self.row_bytes(self.row_room(prompt, max_tokens))
        if self.max_bytes is None or needed <= self.max_bytes:
            return None
        return (
            f"the prompt has {prompt} tokens and needs {needed} bytes of memory with the first of "
            f"its answer; {self.max_bytes} bytes are set aside (--memory-bytes); shorten it"
        )
