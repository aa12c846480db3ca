"""`/metrics`: the status in Prometheus' words, and in text that its own parser reads."""

from prometheus_client.parser import text_string_to_metric_families

from daemon.api.metrics import StatusCollector
from daemon.disk_status import DiskStatus
from daemon.histogram import Histogram
from daemon.status import CacheStatus, EngineStatus, ModelStatus, TotalsStatus
from tests.api.admin_desk import desk
from tests.engine.harness import run, words


def samples(text: str) -> dict[str, float]:
    """Every sample by its name with its labels."""
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def collected(status: EngineStatus) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{value}]" for value in sample.labels.values()): sample.value
        for family in StatusCollector(lambda: status).collect()
        for sample in family.samples
    }


def test_what_requests_did_is_counted() -> None:
    async def scenario() -> None:
        async with desk() as at:
            await at.bench.run(words(300, 1), 4)
            await at.bench.run(words(300, 1), 4, session="main")
            answer = await at.ask("GET", "/metrics")
            assert answer.headers["content-type"].startswith("text/plain")
            found = samples(answer.text)
            assert found["mlxd_requests_total[done]"] == 2
            assert found["mlxd_prompt_tokens_total"] == 600
            assert found["mlxd_reused_tokens_total"] + found["mlxd_read_tokens_total"] == 600
            assert found["mlxd_reused_tokens_total"] == 299
            assert found["mlxd_generated_tokens_total"] == 8
            assert found["mlxd_first_token_seconds_count"] == 2
            assert found["mlxd_first_token_seconds_bucket[+Inf]"] == 2
            assert found["mlxd_cache_lookups_total[hit]"] == 1
            assert found["mlxd_cache_limit_bytes"] == 1 << 30
            assert sum(v for n, v in found.items() if n.startswith("mlxd_cache_bytes[")) > 0
            assert found["mlxd_model_ready"] == 1

    run(scenario())


def test_the_queue_is_shown_as_it_is() -> None:
    async def scenario() -> None:
        async with desk(max_concurrent=1) as at:
            async with at.bench.held():
                first, second = at.bench.submit(words(30, 1)), at.bench.submit(words(30, 2))
                found = samples((await at.ask("GET", "/metrics")).text)
                assert found["mlxd_requests_running"] == 1
                assert found["mlxd_requests_waiting"] == 2
            for generation in (first, second):
                assert [event async for event in generation]
            found = samples((await at.ask("GET", "/metrics")).text)
            assert found["mlxd_requests_running"] == found["mlxd_requests_waiting"] == 0

    run(scenario())


def test_a_scraper_that_asks_for_openmetrics_gets_it() -> None:
    async def scenario() -> None:
        async with desk() as at:
            accept = {"accept": "application/openmetrics-text; version=1.0.0"}
            answer = await at.ask("GET", "/metrics", headers=accept)
            assert answer.headers["content-type"].startswith("application/openmetrics-text")
            assert answer.text.endswith("# EOF\n")

    run(scenario())


def test_buckets_are_cumulative() -> None:
    histogram = Histogram()
    for seconds in (0.05, 0.1, 0.2, 7.0, 1_000.0):
        histogram = histogram.with_value(seconds)
    found = collected(
        EngineStatus(ModelStatus("ready"), totals=TotalsStatus(first_token=histogram))
    )
    name = "mlxd_first_token_seconds"
    assert found[f"{name}_bucket[0.1]"] == 2
    assert found[f"{name}_bucket[0.25]"] == found[f"{name}_bucket[5.0]"] == 3
    assert found[f"{name}_bucket[10.0]"] == found[f"{name}_bucket[300.0]"] == 4
    assert found[f"{name}_bucket[+Inf]"] == found[f"{name}_count"] == 5
    assert found[f"{name}_sum"] == 1_007.35


def test_every_outcome_and_every_reason_of_an_eviction_is_told() -> None:
    totals = TotalsStatus(requests=10, cancelled=3, failed=2, refused=4, parked=6)
    cache = CacheStatus(
        evicted_by_entries=1,
        evicted_by_bytes=2,
        evicted_by_arrays=3,
        evicted_by_idle=4,
        evicted_by_reset=5,
        evicted_by_sessions=6,
    )
    found = collected(EngineStatus(ModelStatus("ready"), cache, totals))
    outcomes = ("done", "cancelled", "failed", "refused")
    assert [found[f"mlxd_requests_total[{each}]"] for each in outcomes] == [5, 3, 2, 4]
    reasons = ("entries", "bytes", "arrays", "idle", "reset", "sessions")
    evictions = [found[f"mlxd_cache_evictions_total[{each}]"] for each in reasons]
    assert evictions == [1, 2, 3, 4, 5, 6]
    assert found["mlxd_parked_total"] == 6
    assert "mlxd_cache_limit_entries" not in found


def test_what_is_on_disk_is_told_with_its_limits_while_anything_is_kept_there() -> None:
    numbers = {
        "usable_bytes": 70,
        "unusable_bytes": 30,
        "max_bytes": 1_000,
        "files": 7,
        "written_bytes": 120,
        "evicted_files": 2,
        "skipped_writes": 3,
        "failed_writes": 4,
        "bad_files": 5,
        "hits": 6,
        "restored_tokens": 6_000,
        "restored_bytes": 60,
    }
    disk = DiskStatus(is_on=True, **numbers)
    found = collected(EngineStatus(ModelStatus("ready"), disk=disk))
    assert found["mlxd_disk_on"] == 1
    assert found["mlxd_disk_bytes[loaded]"] + found["mlxd_disk_bytes[others]"] == 100
    assert (found["mlxd_disk_limit_bytes"], found["mlxd_disk_files"]) == (1_000, 7)
    for name in ("written_bytes", "evicted_files", "skipped_writes", "failed_writes", "bad_files"):
        assert found[f"mlxd_disk_{name}_total"] == numbers[name]
    for name in ("hits", "restored_tokens", "restored_bytes"):
        assert found[f"mlxd_disk_{name}_total"] == numbers[name]
    off = collected(EngineStatus(ModelStatus("ready")))
    assert [name for name in off if name.startswith("mlxd_disk")] == ["mlxd_disk_on"]
