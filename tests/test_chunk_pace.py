"""No chunk holds the device for too long, and none is small without need."""

from daemon.chunk_pace import MAX_CHUNK_SECONDS, MIN_CHUNK_TOKENS, ChunkPace
from tests.engine.harness import Clock, run, running, words

CHUNK = 256
SLOW = 2 * MAX_CHUNK_SECONDS


def test_a_chunk_that_takes_too_long_halves_the_next_ones_down_to_a_least():
    pace = ChunkPace(CHUNK)
    sizes = []
    for _ in range(5):
        sizes.append(pace.tokens)
        pace.took(pace.tokens, SLOW)
    assert sizes == [256, 128, 64, 32, 32]


def test_what_is_quick_grows_again_up_to_what_is_allowed():
    pace = ChunkPace(CHUNK)
    for _ in range(3):
        pace.took(pace.tokens, SLOW)
    pace.took(pace.tokens, MAX_CHUNK_SECONDS / 2)
    assert pace.tokens == 32, "twice as much could take too long"
    pace.took(5, 0.001)
    assert pace.tokens == 32, "a short rest says nothing of a whole chunk"
    sizes = []
    for _ in range(5):
        pace.took(pace.tokens, 0.1)
        sizes.append(pace.tokens)
    assert sizes == [64, 128, 256, 256, 256]


def test_a_small_limit_stays_what_it_is():
    pace = ChunkPace(16)
    pace.took(16, SLOW)
    assert pace.tokens == 16 < MIN_CHUNK_TOKENS


def test_an_engine_on_a_slow_device_reads_smaller_chunks_and_answers_the_same():
    async def scenario() -> None:
        clock = Clock()
        async with running(clock=clock, chunk_tokens=CHUNK) as bench:

            def dawdle() -> None:
                clock.now += seconds

            bench.backend.watch = dawdle
            seconds = SLOW
            prompt = words(1000, 1)
            assert (await bench.run(prompt)).tokens == bench.cold(prompt)
            slow = [call[1] for call in bench.calls("read")]
            seconds = 0.0
            del bench.log[:]
            prompt = words(2000, 2)
            assert (await bench.run(prompt)).tokens == bench.cold(prompt)
            quick = [call[1] for call in bench.calls("read")]
        assert slow[:4] == [256, 128, 64, 32]
        assert max(slow[3:]) == 32
        assert quick[:4] == [32, 64, 128, 256]

    run(scenario())


def test_how_quickly_prompts_are_read_is_known_from_the_first_chunk_on() -> None:
    pace = ChunkPace(CHUNK)
    assert pace.tokens_per_second is None
    pace.took(1_000, 2.0)
    assert pace.tokens_per_second == 500
    for _ in range(50):
        pace.took(1_000, 1.0)
    assert 990 < (pace.tokens_per_second or 0) <= 1_000, "what it was once counts for ever"
