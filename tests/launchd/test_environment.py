"""The environment of an agent: enough to find tools and models, and no more."""

from pathlib import Path

import pytest

from launchd.environment import agent_environment

HOME = Path("/Users/me")


@pytest.mark.parametrize(
    ("variables", "hub_cache"),
    [
        ({}, "/Users/me/.cache/huggingface/hub"),
        ({"HF_HOME": "/Volumes/big/hf"}, "/Volumes/big/hf/hub"),
        ({"HF_HOME": "~/hf"}, "/Users/me/hf/hub"),
        ({"HF_HUB_CACHE": "/Volumes/big/hub", "HF_HOME": "/x"}, "/Volumes/big/hub"),
        ({"HUGGINGFACE_HUB_CACHE": "hub"}, "/Users/me/hub"),
        ({"XDG_CACHE_HOME": "/Users/me/caches"}, "/Users/me/caches/huggingface/hub"),
    ],
)
def test_models_are_looked_for_where_the_shell_would(variables, hub_cache):
    assert agent_environment(variables, HOME)["HF_HUB_CACHE"] == hub_cache


def test_the_path_is_absolute_and_the_same_from_every_shell():
    found = agent_environment({"PATH": "bin:/Users/me/venv/bin"}, HOME)["PATH"]
    assert found == agent_environment({}, HOME)["PATH"]
    assert all(folder.startswith("/") for folder in found.split(":"))
    assert {"/usr/bin", "/bin", "/opt/homebrew/bin"} <= set(found.split(":"))


def test_settings_go_along_and_secrets_do_not():
    variables = {"MLXD_PORT": "9", "MLXD_MODEL": "", "HF_TOKEN": "hf_secret", "EDITOR": "vi"}
    found = agent_environment(variables, HOME, also=("MLXD_PORT", "MLXD_MODEL"))
    assert found["MLXD_PORT"] == "9"
    assert found.keys() == {"PATH", "HF_HOME", "HF_HUB_CACHE", "MLXD_PORT"}
