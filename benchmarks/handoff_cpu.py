"""Measure hand-offs between two engines on a CPU: what they cost running decodes, and what crosses when.

    python benchmarks/handoff_cpu.py [--mode push|pull] [--output FILE]

Two engine processes, one core (see --cores) and one computing thread each, a random 8-layer model, NIXL over UCX's
default transports. The client shares the prefill engine's core.

1. *Posting is off the loop*: the decode engine runs a few sequences, new ones in each turn, so that they are as long in
   one turn as in another. In turns of `--turn-s` seconds, prompts of 4096 tokens arrive at the prefill engine at
   `--rate` a second and are handed over ("with"), or are only prefilled there ("without"). The prefill engine finds
   them in its prefix cache, so both turns cost it the same; the decode engine caches nothing, so every hand-off moves
   the whole prompt. The requests ask for one token, which arrives with the hand-off, so that they add no decode steps.
   Reported: p50 and p99 of the time between two tokens of the running sequences, by the decode engine's clock, and the
   ratios.
2. *What crosses when*: fresh prompts of 8 chunks, one at a time. Reported: bytes, descriptors, blocks, the share of
   bytes posted before prefill ended, and the time from the end of prefill to the last completion.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import statistics
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_cpu import machine, write_report

from baton.cluster.launch import model_launch
from baton.cluster.local import LocalEngine
from baton.core.exchange import TransferRecord
from baton.core.handoff import Handoff, PeerAddress, TransferMode
from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.engine.handoff_options import HandoffOptions
from baton.engine.options import EngineOptions
from baton.wire.engine import Output

VOCAB, BLOCK_TOKENS, LONG, CHUNKS = 1024, 16, 4096, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
}


@dataclass
class Engine:
    """A running engine process. gaps_s: times between two tokens of sequences whose request id begins with "run"."""

    local: LocalEngine
    transfers: list[TransferRecord] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    _last_s: dict[str, float] = field(default_factory=dict)

    def note(self, output: Output) -> None:
        """Take the figures of an Output."""
        self.transfers += output.transfers
        for delta in output.deltas:
            if delta.token_ids and delta.request_id.startswith("run"):
                if delta.request_id in self._last_s:
                    self.gaps_s.append(output.time_s - self._last_s[delta.request_id])
                self._last_s[delta.request_id] = output.time_s

    async def run(self, request: Request) -> None:
        """To the request's end, or until nobody waits for it any more."""
        stream = self.local.client.submit(request)
        try:
            async for delta in stream:
                assert delta.error is None, delta.error
        finally:
            stream.cancel()

    @property
    def address(self) -> PeerAddress:
        """Its control endpoint."""
        peer = self.local.client.info.peer
        assert peer is not None
        return PeerAddress(host=peer.host, port=peer.port, engine_id=peer.engine_id)


def main() -> None:
    """Measure, print, write the result file."""
    args = parse()
    report = asyncio.run(measure(args))
    print(json.dumps({key: value for key, value in report.items() if key != "machine"}, indent=2))
    if args.output:
        write_report(report, args.output)


def parse() -> argparse.Namespace:
    """Arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=["push", "pull"], default="push")
    parser.add_argument("--rate", type=float, default=5.0, help="hand-offs a second")
    parser.add_argument("--running", type=int, default=4, help="sequences that decode")
    parser.add_argument("--turn-s", type=float, default=10.0)
    parser.add_argument("--turns", type=int, default=4, help="of each kind")
    parser.add_argument("--cores", type=int, default=1, help="of each engine; 2: its transfer thread has its own")
    parser.add_argument("--fresh", type=int, default=8, help="prompts of part 2")
    parser.add_argument("--output", type=Path)
    return parser.parse_args()


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Both parts."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        async with (
            engine(folder, "prefill", 0, args.cores) as prefill,
            engine(folder, "decode", 1, args.cores) as decode,
        ):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # this client stays off the decode engine's core
            mover = prefill if args.mode == "push" else decode
            gaps = await off_the_loop(args, prefill, decode)
            crossed = await what_crosses(args, prefill, decode, mover)
    return {
        "mode": args.mode,
        "machine": machine(),
        "rate": args.rate,
        "cores": args.cores,
        "off_the_loop": gaps,
        "what_crosses": crossed,
    }


@asynccontextmanager
async def engine(folder: str, role: str, place: int, count: int) -> AsyncIterator[Engine]:
    """An engine process on `count` cores of its own; one thread computes."""
    cores = os.sched_getaffinity(0)
    options = EngineOptions(
        model=folder,
        device="cpu",
        load_format="dummy",
        dtype="float32",
        block_size=BLOCK_TOKENS,
        max_model_len=8192,
        max_num_batched_tokens=LONG // CHUNKS,
        kv_cache_tokens=16 * LONG,
        enable_prefix_caching=role == "prefill",
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    os.sched_setaffinity(0, sorted(cores)[place * count : (place + 1) * count])
    running = Engine(LocalEngine(model_launch(options, HandoffOptions(role=role))))
    running.local.client.on_output(running.note)
    try:
        starting = asyncio.create_task(running.local.start())
        await asyncio.sleep(0.5)
        os.sched_setaffinity(0, cores)
        await starting
        yield running
    finally:
        await running.local.stop()


async def off_the_loop(args: argparse.Namespace, prefill: Engine, decode: Engine) -> dict[str, Any]:
    """Part 1."""
    prompts = [tokens(seed) for seed in range(4)]
    for prompt in prompts:
        await hand_over(prefill, decode, prompt, args.mode)
    gaps: dict[str, list[float]] = {"with": [], "without": []}
    ratios = []
    for turn in range(args.turns):
        both = {}
        for kind in ("with", "without") if turn % 2 == 0 else ("without", "with"):
            async with decoding(decode, args.running):
                decode.gaps_s.clear()
                await arrivals(args, prefill, decode, prompts, over=kind == "with")
                both[kind] = list(decode.gaps_s)
            gaps[kind] += both[kind]
        ratios.append(percentile(both["with"], 99) / percentile(both["without"], 99))
    figures = {
        kind: {"p50_ms": percentile(values, 50) * 1e3, "p99_ms": percentile(values, 99) * 1e3, "tokens": len(values)}
        for kind, values in gaps.items()
    }
    return figures | {
        "p99_ratio": percentile(gaps["with"], 99) / percentile(gaps["without"], 99),
        "p50_ratio": percentile(gaps["with"], 50) / percentile(gaps["without"], 50),
        "p99_ratio_of_each_turn": ratios,
        "tokens_handed_over_at_once": LONG,
    }


@asynccontextmanager
async def decoding(decode: Engine, count: int) -> AsyncIterator[None]:
    """Sequences that decode from here to the end of the block."""
    names = [f"run-{secrets.token_hex(8)}" for _ in range(count)]
    asked = [request(each, tokens(100 + place, 64), 8000) for place, each in enumerate(names)]
    tasks = [asyncio.create_task(decode.run(each)) for each in asked]
    await asyncio.sleep(1)
    yield
    assert not any(task.done() for task in tasks), "the running sequences ended too early"
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def arrivals(
    args: argparse.Namespace, prefill: Engine, decode: Engine, prompts: list[tuple[int, ...]], *, over: bool
) -> None:
    """One turn: prompts at even intervals, handed over or only prefilled."""
    tasks = []
    for number in range(int(args.turn_s * args.rate)):
        prompt = prompts[number % len(prompts)]
        work = hand_over(prefill, decode, prompt, args.mode) if over else prefill.run(request(name(), prompt, 1))
        tasks.append(asyncio.create_task(work))
        await asyncio.sleep(1 / args.rate)
    await asyncio.gather(*tasks)


async def what_crosses(args: argparse.Namespace, prefill: Engine, decode: Engine, mover: Engine) -> dict[str, Any]:
    """Part 2."""
    records = []
    for seed in range(args.fresh):
        mover.transfers.clear()
        await hand_over(prefill, decode, tokens(1000 + seed), args.mode)
        await asyncio.sleep(0.2)
        records += mover.transfers
    assert len(records) == args.fresh, records
    return {
        "prompt_tokens": LONG,
        "chunks": CHUNKS,
        "blocks": LONG // BLOCK_TOKENS,
        "bytes": records[0].num_bytes,
        "descriptors_max": max(record.num_descriptors for record in records),
        "early_share_min": min(record.early_bytes / record.num_bytes for record in records),
        "exposed_ms_median": statistics.median(record.exposed_s for record in records) * 1e3,
        "post_ms_median": statistics.median(record.post_s for record in records) * 1e3,
    }


async def hand_over(prefill: Engine, decode: Engine, prompt: tuple[int, ...], mode: str) -> None:
    """One request of one token over both engines."""
    transfer_id = secrets.token_hex(16)
    give = request(name(), prompt, 1, Handoff(transfer_id=transfer_id))
    take = request(name(), prompt, 1, Handoff(transfer_id=transfer_id, source=prefill.address, mode=TransferMode(mode)))
    if mode == "push":
        await asyncio.gather(decode.run(take), prefill.run(give))
        return
    await prefill.run(give)
    await decode.run(take)


def name() -> str:
    """A fresh request id."""
    return f"handoff-{secrets.token_hex(8)}"


def request(request_id: str, prompt: tuple[int, ...], max_tokens: int, handoff: Handoff | None = None) -> Request:
    """A greedy request that never stops early."""
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True, seed=0)
    return Request(request_id=request_id, prompt_token_ids=prompt, params=params, handoff=handoff)


def tokens(seed: int, length: int = LONG) -> tuple[int, ...]:
    """A random prompt."""
    return tuple(random.Random(seed).choices(range(VOCAB), k=length))


def percentile(values: list[float], rank: int) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * rank // 100)]


if __name__ == "__main__":
    main()
