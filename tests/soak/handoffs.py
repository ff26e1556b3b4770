"""Hand over thousands of prompts between two engines, and see that nothing grows: memory, open files, threads, blocks.

    python -m tests.soak.handoffs --mode push --count 5000

A tiny random model, real processes, NIXL. Prints a line each fifth of the way; ends with status 1 if resident memory of
either engine process grew by more than 5 % from the second line to the last, or if open files or threads grew at all.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from tests.soak.tiny import tiny_model
from tests.transfer.engines import Pair, RunningEngine, pair

AT_ONCE, PARTS = 8, 5
GROWTH = 1.05


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one engine process."""

    rss_mib: float
    files: int
    threads: int


def main() -> None:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["push", "pull"], default="push")
    parser.add_argument("--count", type=int, default=5000)
    args = parser.parse_args()
    lines = asyncio.run(soak(args.mode, args.count))
    first, last = lines[1], lines[-1]
    sys.exit(any(map(grown, first, last)))


def grown(first: Sample, last: Sample) -> bool:
    """Whether an engine holds more than it did."""
    return last.rss_mib > GROWTH * first.rss_mib or last.files > first.files or last.threads > first.threads


async def soak(mode: str, count: int) -> list[tuple[Sample, Sample]]:
    """A sample of both engines before, and after each part."""
    with tempfile.TemporaryDirectory() as folder:
        async with pair(tiny_model(Path(folder)), mode, load_format="dummy", kv_cache_tokens=4096) as both:
            lines = [show(both, 0)]
            for part in range(1, PARTS + 1):
                await hand_over(both, count // PARTS, part)
                await both.prefill.idle()
                await both.decode.idle()
                lines.append(show(both, part * (count // PARTS)))
            assert both.decode.local.client.stats.num_fallbacks == 0
            return lines


async def hand_over(both: Pair, count: int, seed: int) -> None:
    """Prompts of any length, a few at once."""
    rng, numbers = random.Random(seed), iter(range(count))

    async def client(numbers: Iterator[int]) -> None:
        for number in numbers:
            prompt = tuple(rng.randrange(100) for _ in range(rng.randrange(1, 200)))
            params = SamplingParams(max_tokens=2, temperature=0.0, seed=0, ignore_eos=True)
            asked = Request(request_id=f"{seed}-{number}", prompt_token_ids=prompt, params=params)
            (answer,) = await both.run(asked)
            assert answer.error is None and len(answer.token_ids) == 2, answer

    await asyncio.gather(*(client(numbers) for _ in range(AT_ONCE)))


def show(both: Pair, count: int) -> tuple[Sample, Sample]:
    """Print and return what both processes hold."""
    samples = sample(both.prefill), sample(both.decode)
    text = "   ".join(f"{each.rss_mib:7.1f} MiB {each.files:4d} files {each.threads:3d} threads" for each in samples)
    print(f"{count:6d} hand-offs   {text}", flush=True)
    return samples


def sample(engine: RunningEngine) -> Sample:
    """From /proc."""
    root = Path(f"/proc/{engine.local.pid}")
    fields = dict(line.split(":", 1) for line in (root / "status").read_text().splitlines())
    rss_mib = int(fields["VmRSS"].split()[0]) / 1024
    return Sample(rss_mib, len(list((root / "fd").iterdir())), int(fields["Threads"]))


if __name__ == "__main__":
    main()
