"""One table declares every setting; each source of a value is read by the same rules."""

import pytest

from daemon.errors import ConfigurationError
from daemon.settings import TABLE, Origin, Settings, resolve


def test_an_untouched_daemon_runs_with_the_defaults():
    resolved = resolve({}, {})
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {Origin.DEFAULT}
    assert resolved.chosen() == "defaults"


def test_a_flag_wins_over_the_environment_and_that_over_the_default():
    environment = {"MLXD_PORT": "9000", "MLXD_KV_BITS": "8"}
    resolved = resolve({"port": "9001", "kv_bits": None}, environment)
    assert resolved.settings.port == 9001
    assert resolved.settings.kv_bits == 8
    assert resolved.origins["port"] is Origin.FLAG
    assert resolved.origins["kv_bits"] is Origin.ENVIRONMENT
    assert resolved.origins["model"] is Origin.DEFAULT
    assert resolved.chosen() == "port=9001 (flag), kv-bits=8 (environment)"


def test_an_empty_variable_counts_as_not_set():
    assert resolve({}, {"MLXD_MODEL": ""}).settings.model is None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 2**20),
        ("2GB", 2 * 10**9),
        (" 2 gib ", 2 * 2**30),
        ("1.5MB", 1_500_000),
        ("512KiB", 512 * 1024),
    ],
)
def test_sizes_are_read_with_their_units(text, size):
    assert resolve({"prefix_cache_bytes": text}, {}).settings.prefix_cache_bytes == size


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "0", "from 1 to 65535"),
        ("port", "70000", "from 1 to 65535"),
        ("port", "80a", "from 1 to 65535"),
        ("kv_bits", "5", "4 or 8"),
        ("chunk_tokens", "-1", "a whole number"),
        ("prefix_cache_bytes", "2 parsecs", "a size such as 2GB"),
        ("prefix_cache_bytes", "", "a size such as 2GB"),
        ("prefix_checkpoint_prompt_end", "never", "initial or every"),
        ("prefix_checkpoint_policy", "my.policies.ends", "package.module:function"),
        ("prefix_checkpoint_policy", "my policies:ends", "package.module:function"),
        ("max_sessions", "0", "1 to 10000"),
        ("session_idle_seconds", "0", "from 1 to"),
        ("session_idle_seconds", "999999999999999999", "from 1 to"),
        ("max_concurrent_requests", "0", "1 to 256"),
        ("log_level", "loud", "debug or info or warning or error"),
        ("model", "  ", "some text"),
        ("keep_alive", "half an hour", "30m or 2h, or never"),
        ("keep_alive", "-1", "30m or 2h, or never"),
        ("aliases", "small", "a list such as"),
        ("aliases", "=big", "a list such as"),
        ("aliases", "small=", "a list such as"),
        ("max_loaded_models", "0", "from 1 to 64"),
        ("disk_cache_bytes", "none", "a size such as"),
        ("disk_cache_folder", "here", "an absolute path"),
        ("disk_cache_idle_seconds", "0", "from 1 to"),
        ("shutdown_save_seconds", "61", "from 0 to 60"),
    ],
)
def test_a_wrong_flag_is_refused_by_its_name_with_what_it_has_to_be(name, text, expected):
    with pytest.raises(ConfigurationError) as refusal:
        resolve({name: text}, {})
    assert "--" + name.replace("_", "-") in str(refusal.value)
    assert expected in str(refusal.value)


def test_a_wrong_variable_is_refused_by_its_name():
    with pytest.raises(ConfigurationError, match="MLXD_PORT is 'x'"):
        resolve({}, {"MLXD_PORT": "x"})


def test_every_prompt_end_is_kept_unless_an_interval_stands_in():
    def prompt_end(**flags):
        return resolve(flags, {}).settings.prompt_end

    assert prompt_end() == "every"
    assert prompt_end(prefix_checkpoint_prompt_end="EVERY") == "every"
    assert prompt_end(prefix_checkpoint_prompt_end="initial") == "initial"
    assert prompt_end(prefix_checkpoint_interval="512") == "initial"
    both = {"prefix_checkpoint_prompt_end": "initial", "prefix_checkpoint_interval": "512"}
    assert prompt_end(**both) == "initial"


def test_an_interval_is_refused_beside_an_explicit_every():
    with pytest.raises(ConfigurationError, match="prefix-checkpoint-interval"):
        resolve(
            {"prefix_checkpoint_interval": "512"}, {"MLXD_PREFIX_CHECKPOINT_PROMPT_END": "every"}
        )


def test_the_refusal_of_an_interval_beside_every_says_why():
    flags = {"prefix_checkpoint_interval": "512", "prefix_checkpoint_prompt_end": "every"}
    with pytest.raises(ConfigurationError, match="stands in for the ends of later prompts"):
        resolve(flags, {})


@pytest.mark.parametrize(
    "option", [{"prefix_checkpoint_prompt_end": "initial"}, {"prefix_checkpoint_interval": "512"}]
)
def test_a_policy_of_ones_own_is_refused_beside_the_options_that_it_replaces(option):
    flags = {"prefix_checkpoint_policy": "my.policies:ends", **option}
    with pytest.raises(ConfigurationError, match="it alone decides what is captured"):
        resolve(flags, {})
    alone = resolve({"prefix_checkpoint_policy": " my.policies:ends "}, {}).settings
    assert alone.prefix_checkpoint_policy == "my.policies:ends"


def test_no_entries_at_all_is_a_valid_choice():
    assert resolve({"prefix_cache_entries": "0"}, {}).settings.prefix_cache_entries == 0


def test_a_day_has_a_limit_of_writing_unless_there_is_to_be_none():
    assert Settings().disk_cache_write_bytes_per_day
    unlimited = resolve({"disk_cache_write_bytes_per_day": "none"}, {}).settings
    assert unlimited.disk_cache_write_bytes_per_day is None


def test_a_disk_cache_that_may_write_nothing_is_refused():
    with pytest.raises(ConfigurationError, match="would let nothing be written"):
        resolve({"disk_cache_write_bytes_per_day": "0"}, {})
    off = {"disk_cache_bytes": "0", "disk_cache_write_bytes_per_day": "0"}
    assert resolve(off, {}).settings.disk_cache_bytes == 0


def test_a_share_of_the_disk_is_kept_and_none_of_it_if_told_to():
    assert Settings().disk_cache_bytes is None
    assert resolve({"disk_cache_bytes": "0"}, {}).settings.disk_cache_bytes == 0


def test_the_end_takes_as_long_as_requests_and_writing_may():
    given = {"shutdown_grace_seconds": "7", "shutdown_save_seconds": "20"}
    assert resolve(given, {}).settings.shutdown_seconds == 27


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("90", 90), ("90s", 90), (" 30M ", 1800), ("2h", 7200), ("1d", 86_400)],
)
def test_how_long_a_model_stays_is_read_with_its_unit(text, seconds):
    assert resolve({"keep_alive": text}, {}).settings.keep_alive_seconds == seconds


def test_a_model_stays_half_an_hour_or_for_ever_if_told_to():
    assert Settings().keep_alive_seconds == 1800
    assert resolve({"keep_alive": "Never"}, {}).settings.keep_alive_seconds is None


def test_aliases_are_pairs_of_names():
    read = resolve({}, {"MLXD_ALIASES": " small = owner/m , claude-*=big"}).settings
    assert read.alias_models == {"small": "owner/m", "claude-*": "big"}
    assert Settings().alias_models == {}


def test_each_row_has_names_of_its_own_and_a_default_that_it_would_accept():
    assert len({row.flag for row in TABLE}) == len({row.environment_name for row in TABLE})
    assert {row.name for row in TABLE} >= {"model", "port", "prefix_cache_bytes"}
    for row in TABLE:
        assert row.help
        assert row.shown_default
        if row.default is not None:
            assert row.parse(str(row.default)) == row.default
