"""What a generation_config.json says of sampling."""

from __future__ import annotations

from typing import Any

import pytest

from mlx_backend.messages import Sampling
from mlx_backend.recommended import recommended_sampling


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"eos_token_id": 2, "do_sample": True}, None),
        ({"do_sample": False}, Sampling(temperature=0.0)),
        ({"do_sample": False, "temperature": 0.6}, Sampling(temperature=0.0)),
        ({"temperature": 0.6}, Sampling(temperature=0.6)),
        ({"do_sample": True, "top_p": 0.8}, Sampling(temperature=1.0, top_p=0.8)),
        (
            {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "min_p": 0, "repetition_penalty": 1.05},
            Sampling(temperature=0.7, top_p=0.8, top_k=20, repetition_penalty=1.05),
        ),
        ({"temperature": 0.7, "top_k": 1000}, Sampling(temperature=0.7, top_k=0)),
    ],
)
def test_what_is_given_is_taken(config: dict[str, Any], expected: Sampling | None) -> None:
    assert recommended_sampling(config, 1000) == expected


@pytest.mark.parametrize(
    "value", [None, "0.5", True, -1, float("nan"), float("inf"), [0.5], 10**400]
)
@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_what_is_not_valid_is_left_out(name: str, value: object) -> None:
    assert recommended_sampling({name: value}, 1000) is None


@pytest.mark.parametrize(
    ("name", "value"), [("top_p", 0), ("top_p", 1.5), ("top_k", 1.5), ("repetition_penalty", 0)]
)
def test_what_is_out_of_range_is_left_out(name: str, value: float) -> None:
    expected = Sampling(temperature=0.5)
    assert recommended_sampling({name: value, "temperature": 0.5}, 1000) == expected
