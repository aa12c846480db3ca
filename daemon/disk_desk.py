"""Questions about the disk cache, from the event loop: what is there, is it sound, delete it.

What the engine's thread knows of it is asked by a command, like everything; what only the disk
knows, the disk's threads are asked themselves, each in its turn. Belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from daemon.commands import AskDisk
from daemon.disk_cache.jobs import Check, Chore, JobQueue
from daemon.disk_cache.writing import delete_rest
from daemon.disk_status import DiskCheck, DiskContents
from daemon.disk_tier import DiskOptions, DiskTier
from daemon.errors import DiskNotCleared
from daemon.replies import Replies

Answer = TypeVar("Answer")


class DiskDesk:
    """`send` takes commands to the engine's thread."""

    def __init__(
        self,
        options: DiskOptions,
        writer: JobQueue,
        reader: JobQueue,
        send: Callable[[AskDisk], None],
        replies: Replies,
    ) -> None:
        self._folder = options.folder
        self._limits = options.limits
        self._writer = writer
        self._reader = reader
        self._send = send
        self._replies = replies

    def write_behind(self, write: Callable[[int], int]) -> None:
        """Have something small written to this disk, by its writer, in its turn; from any thread.

        `write` is told how many bytes it may write, and returns those it did.
        """
        self._writer.put(Chore(write, self._limits))

    async def contents(self) -> DiskContents:
        """What is there, of all models, loaded or not."""
        return await self._ask(lambda disk, names: disk.contents(names))

    async def check(self) -> DiskCheck:
        """Read and verify all of it, and delete what is wrong; takes as long as that takes."""
        with self._replies.awaited() as reply:
            self._reader.put(Check(reply))
            check: DiskCheck = await reply.future
        return check

    async def clear(self) -> None:
        """Delete all of it; it is gone then. Raises DiskNotCleared where it cannot be."""
        await self._writing_done()  # before it has looked through the folder nobody knows what goes
        files = await self._ask(lambda disk, names: disk.forget(), is_clearing=True)
        if problem := await self._writing_done(partial(delete_rest, self._folder, files)):
            raise DiskNotCleared(f"Not all of {self._folder} could be deleted: {problem}")

    async def _writing_done(self, act: Callable[[], str] = str) -> str:
        """Wait until all that was asked of the writer so far is done, and then `act`; its word."""
        with self._replies.awaited() as reply:

            def tell(allowed: int) -> int:
                reply.send(act())
                return 0

            self.write_behind(tell)
            answer: str = await reply.future
        return answer

    async def _ask(
        self,
        question: Callable[[DiskTier, Mapping[str, str]], Answer],
        *,
        is_clearing: bool = False,
    ) -> Answer:
        with self._replies.awaited() as reply:
            self._send(AskDisk(question, reply, is_clearing))
            answer: Answer = await reply.future
        return answer
