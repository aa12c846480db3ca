"""The fake keeps the contract that the real backend keeps."""

from __future__ import annotations

import pytest

from mlx_backend.messages import CacheKind
from tests.backend_contract import BackendContract, Subject
from tests.fakes import Script, ScriptedModel


class TestScriptedBackend(BackendContract):
    @pytest.fixture(params=[CacheKind.SLICEABLE, CacheKind.CHECKPOINTED], ids=str)
    def subject(self, request: pytest.FixtureRequest) -> Subject:
        script = Script()

        def break_step() -> None:
            script.faults.steps = 1

        def break_row(_: object) -> None:
            script.faults.rows = 1  # whichever is next: the one that began to decode first

        model = ScriptedModel(script, request.param)
        return Subject(model.backend, request.param, break_step, break_row)
