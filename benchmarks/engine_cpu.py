"""Measure Baton's engine on a CPU: prefill tokens/s, TPOT and output tokens/s by batch size; with a peer, the ratios.

    python benchmarks/engine_cpu.py MODEL_FOLDER                        Baton alone
    python benchmarks/engine_cpu.py MODEL_FOLDER --peer PEER/bin/python  Baton and vLLM's CPU engine in one run

`smollm2-shape` in place of MODEL_FOLDER makes a folder with SmolLM2-135M's shape and random weights: with ignored
end-of-sequence, the values of weights do not change the work.

Each round starts each engine in a process of its own, in alternating order, and repeats the workload there; see
peer_vllm_cpu.py for the workload and the definition of every figure. The result file holds every repetition.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SMOLLM2_SHAPE: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "tie_word_embeddings": True,
}
FIGURES = ("ttft_s", "tpot_s", "output_tok_s")


def main() -> None:
    """Measure, print a table, write the result file."""
    args = parse()
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_smollm2_shape(Path(scratch)) if args.model == "smollm2-shape" else Path(args.model)
        if args.measure:
            print(json.dumps(measure_baton(folder, args)))
            return
        rounds = [run_round(folder, args, number) for number in range(args.rounds)]
    report = summarise(rounds, args)
    print_table(report)
    if args.output:
        write_report(report, args.output)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face folder, or smollm2-shape")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=5, help="repetitions in each process")
    parser.add_argument("--rounds", type=int, default=2, help="processes of each engine")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer", help="python of an environment with vllm-cpu")
    parser.add_argument("--output", type=Path, help="result file (JSON)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def write_smollm2_shape(folder: Path) -> Path:
    """A Llama folder with SmolLM2-135M's shape and seeded random bfloat16 weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SMOLLM2_SHAPE)).to(torch.bfloat16).save_pretrained(folder)
    return folder


def run_round(folder: Path, args: argparse.Namespace, number: int) -> dict[str, Any]:
    """Both engines once, each in its own process; who goes first alternates."""
    engines = ["baton", "peer"] if args.peer else ["baton"]
    order = engines if number % 2 == 0 else engines[::-1]
    return {engine: run_engine(engine, folder, args) for engine in order}


def run_engine(engine: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    common = ["--batch", *map(str, args.batch), "--input-tokens", str(args.input_tokens)]
    common += ["--output-tokens", str(args.output_tokens), "--repeat", str(args.repeat)]
    common += ["--dtype", args.dtype, "--threads", str(args.threads)]
    if engine == "peer":
        command = [args.peer, str(HERE / "peer_vllm_cpu.py"), str(folder), *common]
    else:
        command = [sys.executable, __file__, str(folder), *common, "--measure"]
    environment = os.environ | {"OMP_NUM_THREADS": str(args.threads)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=1800, check=False)
    if done.returncode != 0:
        sys.exit(f"{engine} failed:\n{done.stderr[-4000:]}")
    # The peer logs to stdout too, even after its report.
    report: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"engine"')))
    return report


def measure_baton(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """The workload on Baton, in this process."""
    import torch

    from baton import LLM

    torch.set_num_threads(args.threads)
    llm = LLM(
        folder,
        dtype=args.dtype,
        device="cpu",
        enable_prefix_caching=False,
        max_model_len=args.input_tokens + args.output_tokens + 64,
        max_num_seqs=max(args.batch),
    )
    rng = random.Random(0)
    report: dict[str, Any] = {"engine": "baton", "dtype": args.dtype, "threads": args.threads, "batches": {}}
    with llm:
        for batch in args.batch:
            runs = [repetition(llm, rng, batch, args) for _ in range(args.repeat + 1)][1:]
            report["batches"][str(batch)] = {"repetitions": runs}
    return report


def repetition(llm: Any, rng: random.Random, batch: int, args: argparse.Namespace) -> dict[str, float]:
    first = seconds(llm, rng, batch, args.input_tokens, 1)
    whole = seconds(llm, rng, batch, args.input_tokens, args.output_tokens)
    return {
        "ttft_s": first,
        "tpot_s": (whole - first) / (args.output_tokens - 1),
        "output_tok_s": batch * args.output_tokens / whole,
    }


def seconds(llm: Any, rng: random.Random, batch: int, input_tokens: int, output_tokens: int) -> float:
    """Seconds of one generate call on fresh random prompts; checks that every output has its full length."""
    from baton import SamplingParams

    prompts = [[rng.randrange(10, llm.vocab_size) for _ in range(input_tokens)] for _ in range(batch)]
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
    started = time.perf_counter()
    outputs = llm.generate(prompts, params)
    elapsed_s = time.perf_counter() - started
    assert all(len(output.token_ids) == output_tokens for output in outputs)
    return elapsed_s


def summarise(rounds: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Medians over all repetitions of all rounds, prefill rate, and ratios in Baton's favour (over 1 is better)."""
    names = ("input_tokens", "output_tokens", "repeat", "rounds", "dtype", "threads")
    workload = {"model": Path(args.model).name, **{name: getattr(args, name) for name in names}}
    report: dict[str, Any] = {"machine": machine(), "workload": workload}
    for engine in rounds[0]:
        report[engine] = {"name": rounds[0][engine]["engine"], "batches": {}}
        for batch in map(str, args.batch):
            runs = [run for each in rounds for run in each[engine]["batches"][batch]["repetitions"]]
            medians = {name: statistics.median(run[name] for run in runs) for name in FIGURES}
            medians["prefill_tok_s"] = int(batch) * args.input_tokens / medians["ttft_s"]
            report[engine]["batches"][batch] = {**medians, "repetitions": runs}
    if args.peer:
        report["ratios"] = {batch: ratios(report, batch) for batch in map(str, args.batch)}
    return report


def ratios(report: dict[str, Any], batch: str) -> dict[str, float]:
    ours, theirs = report["baton"]["batches"][batch], report["peer"]["batches"][batch]
    return {
        "ttft": theirs["ttft_s"] / ours["ttft_s"],
        "tpot": theirs["tpot_s"] / ours["tpot_s"],
        "output_tok_s": ours["output_tok_s"] / theirs["output_tok_s"],
    }


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "git": git.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write_report(report: dict[str, Any], path: Path) -> None:
    """The result file, in a folder that may have to be made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")


def print_table(report: dict[str, Any]) -> None:
    print(f"{'engine':24} {'batch':>5} {'prefill tok/s':>14} {'TTFT ms':>9} {'TPOT ms':>9} {'output tok/s':>13}")
    for engine in ("baton", "peer"):
        for batch, row in report.get(engine, {"batches": {}})["batches"].items():
            print(
                f"{report[engine]['name']:24} {batch:>5} {row['prefill_tok_s']:14.0f} {row['ttft_s'] * 1e3:9.1f} "
                f"{row['tpot_s'] * 1e3:9.2f} {row['output_tok_s']:13.1f}"
            )
    for batch, row in report.get("ratios", {}).items():
        print(
            f"{'ratio in our favour':24} {batch:>5} {'':14} {row['ttft']:9.2f} {row['tpot']:9.2f} "
            f"{row['output_tok_s']:13.2f}"
        )


if __name__ == "__main__":
    main()
