"""Which prompt is read when, and what a decoding row sees of it."""

from __future__ import annotations

import asyncio

from tests.engine.harness import Bench, collect, run, running, until, words
from tests.fakes import Script, fixed_reply


def reads(bench: Bench) -> list[int]:
    """Lengths of the chunks in the order in which they were read."""
    return [call[1] for call in bench.calls("read")]


def test_the_prompt_with_least_left_is_read_first() -> None:
    async def scenario() -> None:
        async with running() as bench:
            await bench.together([words(length, length // 300) for length in (1901, 301, 901)])
            assert reads(bench)[0] == 300
            assert sum(reads(bench)) == 3100
            assert [call[1] for call in bench.calls("start_decoding")] == [301, 901, 1901]

    run(scenario())


def test_what_the_tree_holds_counts_as_read() -> None:
    async def scenario() -> None:
        async with running() as bench:
            long = words(2001, 1)
            await bench.run(long, max_tokens=1)
            await bench.together([words(301, 2), long + words(50, 3)])
            assert [call[1] for call in bench.calls("start_decoding")] == [2051, 301]

    run(scenario())


def test_of_equal_prompts_the_one_that_came_first_is_read_first() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=1) as bench:
            answers = await bench.together([words(100, seed) for seed in range(5)])
            opened = sorted(bench.engine.status().recent, key=lambda r: r.waited_seconds)
            assert [r.id for r in opened if r.id != "r0"] == ["r1", "r2", "r3", "r4", "r5"]
            assert len(answers) == 5

    run(scenario())


def test_a_short_prompt_does_not_wait_behind_a_long_one() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=100) as bench:
            bench.chunks.allow(3)
            long = bench.submit(words(20_000, 1), max_tokens=3)
            await bench.chunks.standing()
            short = bench.submit(words(200, 2), max_tokens=1)
            bench.chunks.allow(3)  # the one under way, and two for the short prompt
            assert (await collect(short)).tokens == bench.cold(words(200, 2), 1)
            bench.chunks.free()
            assert (await collect(long)).tokens == bench.cold(words(20_000, 1), 3)

    run(scenario())


def test_a_long_prompt_is_not_passed_over_for_ever() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=4, chunk_tokens=500) as bench:
            long = words(5001, 1)
            shorts = [words(501, 100 + n) for n in range(60)]
            async with bench.held():
                generations = [bench.submit(prompt, 1) for prompt in [long, *shorts]]
            await asyncio.gather(*map(collect, generations))
            started = [call[1] for call in bench.calls("start_decoding")]
            before = started.index(5001) * 500
            assert 4000 <= before <= 2 * 5000 + 2 * 500  # yields what it has left, then takes turns
            is_long = "".join("L" if call[2] else "s" for call in bench.calls("read"))
            assert "LLL" not in is_long, "the short ones wait for more than a chunk or two"

    run(scenario())


def test_a_decoding_row_sees_one_chunk_and_one_new_row_at_most_between_two_steps() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=400) as bench:
            await bench.together([words(300 + 500 * n, n) for n in range(6)])
            names = [call[0] for call in bench.log]
            passes = " ".join(names).split("step")[1:]
            assert len(passes) > 40
            for between in passes:
                assert between.count("read") <= 1
                assert between.count("start_decoding") <= 1
                assert between.count("open") <= 1

    run(scenario())


def test_chunks_are_smaller_while_others_decode() -> None:
    async def scenario() -> None:
        async with running(chunk_tokens=400) as bench:
            await bench.together([[1], words(1001, 1)])
            assert reads(bench) == [100] * 10
            await bench.run(words(1001, 2))
            assert reads(bench)[10:] == [400, 400, 200]

    run(scenario())


def test_rows_are_limited_and_all_decode_together() -> None:
    async def scenario() -> None:
        async with running(max_concurrent=3) as bench:
            await bench.together([words(50, n) for n in range(9)])
            widths = [call[1] for call in bench.calls("step")]
            assert max(widths) == 3

    run(scenario())


def test_a_stream_goes_on_while_a_long_prompt_is_read() -> None:
    async def scenario() -> None:
        endless = Script(reply=fixed_reply(range(200)))
        async with running(endless, chunk_tokens=100) as bench:
            await bench.together([[1, 2], words(2001, 1)], max_tokens=150)
            names = [call[0] for call in bench.log]
            last_read = len(names) - names[::-1].index("read")
            assert names.count("read") > 20
            assert names[:last_read].count("step") >= names.count("read") - 2

    run(scenario())


def test_one_wakeup_of_the_loop_delivers_all_rows_of_a_step() -> None:
    async def scenario() -> None:
        async with running() as bench:
            loop = asyncio.get_running_loop()
            wakeups, wake = [], loop.call_soon_threadsafe

            def counted(*args: object, **more: object) -> object:
                wakeups.append(args)
                return wake(*args, **more)  # type: ignore[arg-type]

            loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]
            answers = await bench.together([words(40, n) for n in range(8)])
            passes = len(bench.calls("step")) + len(bench.calls("open"))
            assert sum(len(answer.tokens) for answer in answers) == 320
            assert len(wakeups) <= passes + 10
            await until(lambda: not bench.engine.status().running)

    run(scenario())
