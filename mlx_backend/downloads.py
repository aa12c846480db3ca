"""Fetches a hub repository into the hub's own cache: what mlx-lm needs of it, and no code.

The only place that speaks to the hub, and only when a person asks for it. What is there already is
not fetched again; what was cut off is continued. Whether the disk has room is known before.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeAlias

from mlx_backend.errors import BackendError, ModelNotFound, ModelUnsupported
from mlx_backend.model_files import NEEDED_FILES

SPARE_BYTES = 1 << 30
"""What a download leaves free on the disk, for everything else on it."""

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes that are there so far and their total."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """`blob` is the name under which the hub's cache keeps its content, "" if it is not known."""

    name: str
    size: int
    blob: str = ""


def fetch_repository(repo: str, hub: Path, progress: Progress, endpoint: str | None = None) -> Path:
    """The folder of the repository's main revision, whole. `endpoint` stands in for the hub's.

    Raises ModelNotFound, for a repository that is not there or cannot be read and for a download
    that fails, and ModelUnsupported for one that mlx-lm cannot run.
    """
    from huggingface_hub import snapshot_download

    with _failures_in_words(repo):
        files = _remote_files(repo, endpoint)
        _check_files(repo, files)
        total = sum(file.size for file in files)
        blobs = hub / f"models--{repo.replace('/', '--')}" / "blobs"
        there = _bytes_there(files, blobs)
        _check_disk(repo, total - there - _bytes_begun(files, blobs), hub)
        progress(there, total)
        folder = snapshot_download(
            repo,
            cache_dir=hub,
            endpoint=endpoint,
            allow_patterns=list(NEEDED_FILES),
            tqdm_class=_reporting(progress, there, total),
        )
    progress(total, total)
    return Path(folder)


def _remote_files(repo: str, endpoint: str | None) -> tuple[RemoteFile, ...]:
    """What would be fetched, with sizes."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint).model_info(repo, files_metadata=True)
    return tuple(
        RemoteFile(
            each.rfilename,
            each.size or 0,
            (each.lfs.sha256 if each.lfs else each.blob_id) or "",
        )
        for each in info.siblings or ()
        if any(fnmatchcase(each.rfilename, pattern) for pattern in NEEDED_FILES)
    )


def _check_files(repo: str, files: tuple[RemoteFile, ...]) -> None:
    names = {file.name for file in files}
    if "config.json" not in names or not any(name.endswith(".safetensors") for name in names):
        raise ModelUnsupported(
            f"{repo} is no model that mlx-lm can run: it has no config.json with weights as "
            "model*.safetensors. Repositories of `mlx-community` have."
        )


def _bytes_there(files: tuple[RemoteFile, ...], blobs: Path) -> int:
    """How much of them is in the cache, whole."""
    return sum(file.size for file in files if file.blob and (blobs / file.blob).is_file())


def _bytes_begun(files: tuple[RemoteFile, ...], blobs: Path) -> int:
    """How much of them is left of downloads that broke off; those go on from there."""
    begun = (blobs.glob(f"{file.blob}*.incomplete") for file in files if file.blob)
    return sum(max((part.stat().st_size for part in parts), default=0) for parts in begun)


def _check_disk(repo: str, needed: int, hub: Path) -> None:
    place = next(each for each in (hub, *hub.parents) if each.is_dir())
    free = shutil.disk_usage(place).free
    if needed + SPARE_BYTES > free:
        raise ModelNotFound(
            f"{repo} needs {needed:,} bytes more on the disk of {hub}, where {free:,} are free, of "
            f"which {SPARE_BYTES:,} are left alone. `mlxd rm MODEL` makes room."
        )


def _reporting(progress: Progress, there: int, total: int) -> type[Any]:
    """A progress bar for the hub's client that draws nothing, and tells of each byte once."""
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    done = there

    class Reporting(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            name = str(options.get("name", ""))
            self._counts = options.get("unit") == "B" and not name.endswith(".transfer")
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal done
            if self._counts:
                done = min(total, done + int(n or 0))
                progress(done, total)
            return None

    return Reporting


@contextmanager
def _failures_in_words(repo: str) -> Iterator[None]:
    from huggingface_hub import errors

    try:
        yield
    except BackendError:
        raise
    except errors.OfflineModeIsEnabled as error:
        raise ModelNotFound(f"{repo} is not fetched while HF_HUB_OFFLINE is set.") from error
    except errors.GatedRepoError as error:
        raise ModelNotFound(
            f"{repo} wants its terms accepted: do so on its page, then `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"The hub has no repository {repo}, or not for you: `hf auth login` if it is private."
        ) from error
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{repo} is no name of a repository, such as owner/name.") from error
    except Exception as error:  # whatever an HTTP client or a disk raises
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelNotFound(
            f"{repo} could not be fetched ({said}). What has come by now is kept; try again."
        ) from error
