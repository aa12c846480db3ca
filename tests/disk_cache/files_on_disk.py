"""Files as the archive would make them of sequences of tokens: blocks where some are lacking."""

from __future__ import annotations

from collections.abc import Sequence

from daemon.disk_cache.files import BLOCK_TOKENS, FileKind, StoredFile, key_of
from daemon.disk_cache.index import DiskIndex
from mlx_backend.messages import token_ids

IDENTITY = "model"


def lacking(
    index: DiskIndex, ids: Sequence[int], block_tokens: int = BLOCK_TOKENS
) -> list[StoredFile]:
    """The blocks that an index lacks of a sequence, parents first."""
    tokens = token_ids(ids)
    covered = index.coverage(tokens)
    parent = covered.last.key if covered.last else ""
    blocks = []
    for start in range(covered.length, len(tokens), block_tokens):
        end = min(start + block_tokens, len(tokens))
        key = key_of(index.identity, [tokens[:end]])
        own = tokens[start:end].copy()
        blocks.append(StoredFile(index.identity, FileKind.BLOCK, key, parent, start, end, own))
        parent = key
    return blocks


def checkpoint(index: DiskIndex, ids: Sequence[int]) -> StoredFile:
    """One after all tokens of a sequence, which the index covers."""
    tokens = token_ids(ids)
    covered = index.coverage(tokens)
    assert covered.length == len(tokens)
    assert covered.last is not None
    key = key_of(index.identity, [tokens])
    length = len(tokens)
    return StoredFile(
        index.identity, FileKind.CHECKPOINT, key, covered.last.key, length, length, label="head"
    )


def put(
    index: DiskIndex,
    ids: Sequence[int],
    block_tokens: int = BLOCK_TOKENS,
    *,
    is_checkpointed: bool = False,
) -> list[StoredFile]:
    """Have a sequence on disk; the files that came to it, as they are in the index."""
    files = lacking(index, ids, block_tokens)
    for file in files:
        assert index.add(file, is_written=False)
        index.written(file, nbytes=100 + len(file.tokens))
    if is_checkpointed:
        files.append(checkpoint(index, ids))
        assert index.add(files[-1], is_written=False)
        index.written(files[-1], nbytes=50)
    return [found for file in files if (found := index.get(file.name)) is not None]
