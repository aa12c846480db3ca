"""Tokens per second of `Backend.step` beside a bare `GenerationBatch` loop on the same rows.

    python -m tests.benchmarks.decode [--streams 1 4] [--prompt 512] [--steps 60]

A random llama of some 25 million parameters in float32, unless a model folder is given. Both run
in turns in one process, a few steps each, so that a busy machine slows both; what counts is the
fastest fifth of the steps. A ratio of 0.95 is wanted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from mlx_backend.blas import prefer_openblas

prefer_openblas()

import mlx.core as mx  # noqa: E402
import numpy as np  # noqa: E402
from mlx_lm.generate import GenerationBatch, StopSequences  # noqa: E402
from mlx_lm.models import llama  # noqa: E402
from mlx_lm.models.cache import make_prompt_cache  # noqa: E402
from mlx_lm.sample_utils import greedy_sampler, make_sampler  # noqa: E402

from mlx_backend.backend import MlxBackend  # noqa: E402
from mlx_backend.layers import classify  # noqa: E402
from mlx_backend.messages import Sampling, TokenIds  # noqa: E402

TURN_STEPS = 5
SAMPLINGS = {
    "greedy": (Sampling(), greedy_sampler),
    "temperature 0.7": (Sampling(temperature=0.7), make_sampler(0.7)),
    "0.7, top_p 0.9": (Sampling(temperature=0.7, top_p=0.9), make_sampler(0.7, top_p=0.9)),
}


def random_llama(layers: int = 8, width: int = 384, vocabulary: int = 32_000) -> Any:
    """About 25 million parameters."""
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=width,
        num_hidden_layers=layers,
        intermediate_size=3 * width,
        num_attention_heads=width // 64,
        num_key_value_heads=width // 128,
        rms_norm_eps=1e-5,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
    )
    model = llama.Model(arguments)
    mx.eval(model.parameters())
    return model


def weight_bytes(model: Any) -> int:
    from mlx.utils import tree_flatten

    return sum(array.nbytes for _, array in tree_flatten(model.parameters()))


def bare_loop(model: Any, prompts: Sequence[TokenIds], sampler: Any) -> Callable[[], object]:
    """One step of mlx-lm's batch of these rows, as its own generator would run it."""
    batch = GenerationBatch.empty(model, sampler)
    for uid, prompt in enumerate(prompts):
        cache = make_prompt_cache(model)
        model(mx.array(prompt[:-1])[None], cache=cache)
        mx.eval([c.state for c in cache])
        if len(prompts) > 1:
            cache = [c.merge([c]) for c in cache]
        row = GenerationBatch(
            model, [uid], mx.array(prompt[-1:]), cache, [prompt[:-1].tolist()], [sampler], sampler,
            [()], [StopSequences()], [1 << 30],
        )  # fmt: skip
        batch.extend(row)
    return batch.next


def backend_loop(
    model: Any, prompts: Sequence[TokenIds], sampling: Sampling
) -> Callable[[], object]:
    backend = MlxBackend(model, classify(model), weight_bytes(model))
    for prompt in prompts:
        row = backend.open_row(None, len(prompt) + 256)
        backend.read(row, prompt[:-1])
        backend.start_decoding(row, int(prompt[-1]), sampling, prompt)
    return backend.step


def seconds_per_step(steps: Sequence[Callable[[], object]], count: int) -> list[float]:
    """The fastest fifth, the loops taking turns; the first turn of each is not counted."""
    seconds: list[list[float]] = [[] for _ in steps]
    for turn in range(count // TURN_STEPS + 1):
        for index, step in enumerate(steps):
            for _ in range(TURN_STEPS):
                start = time.perf_counter()
                step()
                if turn:
                    seconds[index].append(time.perf_counter() - start)
    return [statistics.mean(sorted(taken)[: max(1, len(taken) // 5)]) for taken in seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a model folder; else a random llama")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--prompt", type=int, default=512, help="tokens in each row")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    if options.model:
        from mlx_lm import load

        model = load(options.model)[0]
    else:
        model = random_llama()
    print(f"{'streams':>7}  {'sampling':<16} {'bare tok/s':>10} {'ours tok/s':>10} {'ratio':>6}")
    for streams in options.streams:
        prompts = [
            np.random.default_rng(seed).integers(0, 30_000, options.prompt).astype(np.int32)
            for seed in range(streams)
        ]
        for name, (sampling, sampler) in SAMPLINGS.items():
            loops = [bare_loop(model, prompts, sampler), backend_loop(model, prompts, sampling)]
            bare, ours = seconds_per_step(loops, options.steps)
            rates = streams / bare, streams / ours
            print(
                f"{streams:>7}  {name:<16} {rates[0]:>10.1f} {rates[1]:>10.1f} {bare / ours:>6.2f}"
            )


if __name__ == "__main__":
    main()
