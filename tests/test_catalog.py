"""Which model an id means, and which ids a model has."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from daemon.catalog import Catalog
from daemon.errors import NotFound
from daemon.sources import ModelSource
from daemon.status import ModelStatus
from mlx_backend.errors import ModelNotFound
from mlx_backend.messages import LocalModel

TINY = LocalModel("tiny-1B", "/models/tiny-folder", "", 10, 1000)
QWEN = LocalModel("Qwen3-4B-4bit", "/hub/q4", "mlx-community/Qwen3-4B-4bit", 20, 2000)
OTHER_QWEN = LocalModel("Qwen3-4B-4bit", "/hub/q4b", "somebody/Qwen3-4B-4bit", 30, 3000)
GPT = LocalModel("gpt-9-local", "/hub/g", "x/gpt-9-local", 40, 4000)


class Disk:
    """A shelf whose models a test puts there; `looks` counts how often it was looked at."""

    def __init__(self, *models: LocalModel) -> None:
        self.here = list(models)
        self.folders: dict[str, LocalModel] = {}
        self.looks = 0

    def models(self) -> Sequence[LocalModel]:
        self.looks += 1
        return tuple(self.here)

    def model(self, path_or_repo: str) -> LocalModel:
        if path_or_repo not in self.folders:
            raise ModelNotFound(f"There is no folder {path_or_repo}.")
        return self.folders[path_or_repo]


def source(model: LocalModel) -> ModelSource:
    return ModelSource(model.key, lambda: pytest.fail("nothing is loaded here"), model.name)


def catalog(*models: LocalModel, aliases: dict[str, str] | None = None) -> Catalog:
    """The first is the default."""
    made = Catalog(models[0], source, Disk(*models), aliases)
    asyncio.run(made.refresh())
    return made


@pytest.mark.parametrize("asked", [None, "", "default"])
def test_without_a_name_the_default_is_meant(asked: str | None) -> None:
    assert catalog(TINY, QWEN).resolve(asked) is TINY


@pytest.mark.parametrize(
    "asked", ["owner/tiny-1B", "tiny-1B", "/models/tiny-folder", "tiny-folder", "x/y/tiny-1B"]
)
def test_a_model_is_found_by_each_of_its_ids(asked: str) -> None:
    assert catalog(QWEN, TINY).resolve(asked) is TINY


@pytest.mark.parametrize(
    "asked",
    [
        "claude-haiku-4-5-20251001",
        "anthropic/claude-opus-4",
        "gpt-5.2",
        "gpt-4o-mini",
        "openai/gpt-5",
        "o3",
        "o4-mini",
        "codex-mini-latest",
    ],
)
def test_ids_that_agents_have_built_in_mean_the_default(asked: str) -> None:
    assert catalog(TINY, QWEN).resolve(asked) is TINY


def test_a_local_model_of_a_vendors_name_is_meant_itself() -> None:
    assert catalog(TINY, GPT).resolve("gpt-9-local") is GPT
    assert catalog(TINY, GPT).resolve("gpt-9") is TINY


@pytest.mark.parametrize(
    "asked", ["nonsense", "tiny-1B/x", "gpt-oss-120b", "o365", "claudette", "/models"]
)
def test_other_ids_are_not_found_and_the_known_ones_are_told(asked: str) -> None:
    with pytest.raises(NotFound, match="`tiny-1B`, `Qwen3-4B-4bit`") as caught:
        catalog(TINY, QWEN).resolve(asked)
    assert (caught.value.field, caught.value.code) == ("model", "model_not_found")


def test_an_alias_stands_for_a_local_model_before_anything_else() -> None:
    aliases = {"small": "mlx-community/Qwen3-4B-4bit", "me": "tiny"}
    aliases |= {"claude-haiku-*": "Qwen3-4B-4bit", "gpt-9-local": "default"}
    made = catalog(TINY, QWEN, GPT, aliases=aliases)
    assert made.resolve("small") is QWEN
    assert made.resolve("claude-haiku-4-5") is QWEN
    assert made.resolve("claude-opus-4") is TINY
    assert made.resolve("gpt-9-local") is TINY
    with pytest.raises(NotFound, match="`me`, for which the settings say `tiny`, is not here"):
        made.resolve("me")


def test_of_two_repositories_of_one_name_each_has_an_id_of_its_own() -> None:
    made = catalog(TINY, QWEN, OTHER_QWEN)
    ids = [model.id for model in made.listed()]
    assert ids == ["tiny-1B", "Qwen3-4B-4bit", "somebody/Qwen3-4B-4bit"]
    assert [made.resolve(id).key for id in ids] == [TINY.key, QWEN.key, OTHER_QWEN.key]


def test_the_list_says_what_is_the_default_what_is_loaded_and_by_which_aliases() -> None:
    made = catalog(TINY, QWEN, aliases={"small": "Qwen3-4B-4bit", "c-*": "nowhere"})
    loaded = ModelStatus("ready", name="Qwen3-4B-4bit", key=QWEN.key, context_size=512)
    tiny, qwen = made.listed([loaded])
    assert (tiny.is_default, tiny.state, tiny.aliases, tiny.context_size) == (True, "", (), 1000)
    assert (qwen.is_default, qwen.state, qwen.aliases) == (False, "ready", ("small",))
    assert qwen.context_size == 512  # as it is honoured


def test_a_model_that_came_to_the_disk_meanwhile_is_found_by_looking_again() -> None:
    disk = Disk(TINY)
    made = Catalog(TINY, source, disk)
    disk.here.append(QWEN)
    assert asyncio.run(made.find("Qwen3-4B-4bit")) is QWEN
    disk.here.clear()
    loaded = ModelStatus("ready", key=QWEN.key)
    assert asyncio.run(made.find("Qwen3-4B-4bit", [loaded])) is QWEN
    assert asyncio.run(made.find("default")) is TINY
    assert disk.looks == 1  # what is loaded, and the default, are not looked for every time
    with pytest.raises(NotFound):
        asyncio.run(made.find("Qwen3-4B-4bit"))


def test_another_default_answers_for_vendors_names_and_the_former_stays_known() -> None:
    made = catalog(replace(TINY, name="mine"), QWEN)
    made.use(QWEN)
    assert made.resolve("claude-x") is QWEN
    assert made.resolve("mine").key == TINY.key
    assert made.listed()[0].id == "Qwen3-4B-4bit"


def test_a_folder_on_no_shelf_is_only_for_who_owns_the_account() -> None:
    disk = Disk(TINY)
    disk.folders["/elsewhere/m"] = LocalModel("m", "/elsewhere/m", "", 5, 100)
    made = Catalog(TINY, source, disk)
    with pytest.raises(NotFound):
        asyncio.run(made.find("/elsewhere/m"))
    assert asyncio.run(made.adopt("/elsewhere/m")).name == "m"
    assert made.resolve("m").folder == "/elsewhere/m"
    with pytest.raises(ModelNotFound):
        asyncio.run(made.adopt("/elsewhere/none"))
    with pytest.raises(NotFound):
        asyncio.run(made.adopt("nonsense"))


def test_a_model_that_only_the_engine_knows_is_called_as_it_calls_itself() -> None:
    made = Catalog(LocalModel(""))
    assert made.listed() == ()
    status = ModelStatus("ready", name="scripted", path="/models/scripted", context_size=7)
    assert made.resolve("owner/scripted", [status]) is made.default
    with pytest.raises(NotFound, match="`scripted`"):
        made.resolve("nonsense", [status])
    assert [(each.id, each.context_size) for each in made.listed([status])] == [("scripted", 7)]
    assert made.source(made.default) is None
