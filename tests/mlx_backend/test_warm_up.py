"""A load ends with a short read and a step, of which nothing is left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mlx_backend.backend import MlxBackend
from mlx_backend.checkpoints import MlxCheckpoint
from mlx_backend.errors import ModelUnsupported, RestoreFailed
from mlx_backend.host_arrays import HostArray
from mlx_backend.interface import Counters, Row
from mlx_backend.loading import load
from mlx_backend.messages import CacheKind
from mlx_backend.snapshots import MlxSpan
from mlx_backend.tiny_models import token_count, write_folder
from mlx_backend.warm_up import READ_TOKENS, warm_up
from tests.mlx_backend.conversations import ListeningModel
from tests.mlx_backend.tiny_rows import live_bytes, tiny_layout, tiny_model

KINDS = ["tiny-full", "tiny-sliding", "tiny-hybrid"]


class CountingModel(ListeningModel):
    """Notes how many tokens each call has."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.lengths: list[int] = []

    def __call__(self, tokens: Any, cache: Any) -> Any:
        self.lengths.append(tokens.shape[1])
        return super().__call__(tokens, cache)


@pytest.mark.parametrize("kind", KINDS)
def test_a_warm_up_runs_the_model_as_a_request_does_and_leaves_nothing(kind: str) -> None:
    model = CountingModel(tiny_model(kind))
    backend = MlxBackend(model, tiny_layout(kind), weight_bytes=1)
    model.lengths.clear()
    model.logits.clear()
    before = live_bytes()
    assert warm_up(backend, token_count(), tiny_layout(kind).kind) == ""
    model.logits.clear()
    assert (model.lengths[0], set(model.lengths[1:])) == (READ_TOKENS, {1})
    assert backend.counters == Counters()
    assert live_bytes() == before
    backend.close()


def test_a_load_ends_with_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="mlx_backend.warm_up")
    model = load(str(write_folder("tiny-full", tmp_path / "tiny")))
    assert [record.message.partition(" in ")[0] for record in caplog.records] == ["warmed up"]
    assert model.backend.counters == Counters()
    model.backend.close()


def test_a_model_that_breaks_at_its_first_step_is_none_that_runs() -> None:
    model = CountingModel(tiny_model("tiny-full"))
    backend = MlxBackend(model, tiny_layout("tiny-full"), weight_bytes=1)
    model.failures = 1
    with pytest.raises(ModelUnsupported, match="does not run"):
        warm_up(backend, token_count(), CacheKind.SLICEABLE)
    backend.close()


class ForgetfulBackend(MlxBackend):
    """What comes back from the host's memory is not what left."""

    def import_span(self, arrays: Sequence[HostArray], start: int, stop: int) -> MlxSpan:
        whole = super().import_span(arrays, start, stop)
        first, rest = whole.split(1)
        return rest.join(first)


class FullBackend(MlxBackend):
    """A checkpoint does not come back at all."""

    def import_checkpoint(
        self, length: int, described: str, arrays: Sequence[HostArray]
    ) -> MlxCheckpoint:
        raise RestoreFailed("no memory")


class StrangeBackend(MlxBackend):
    """Its state is of a type that no file has a name for."""

    def capture_span(self, row: Row, start: int, stop: int) -> MlxSpan:
        raise KeyError("complex64")


@pytest.mark.parametrize(
    ("backend_class", "kind", "words"),
    [
        (StrangeBackend, "tiny-full", "cannot come back: 'complex64'"),
        (ForgetfulBackend, "tiny-full", "comes back changed"),
        (FullBackend, "tiny-sliding", "cannot come back: no memory"),
    ],
)
def test_state_that_is_another_after_a_round_trip_is_not_kept_on_disk(
    backend_class: type[MlxBackend], kind: str, words: str
) -> None:
    layout = tiny_layout(kind)
    backend = backend_class(tiny_model(kind), layout, weight_bytes=1)
    assert words in warm_up(backend, token_count(), layout.kind)
    assert backend.counters == Counters()
    backend.close()
