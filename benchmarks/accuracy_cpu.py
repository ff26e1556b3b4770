"""The questions of `baton bench accuracy`, asked of one engine, of a pair by push and by pull, and by lm-eval.

    python benchmarks/accuracy_cpu.py MODEL_FOLDER [--lm-eval PEER/bin/lm_eval] [--output FILE]

In float32. Fails unless all three answer every question with the same tokens, and lm-eval's score is the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from engine_cpu import machine, write_report
from fleet_ttft_cpu import start, url

from baton.bench.accuracy import Graded, Quiz, ask_all, score
from baton.bench.client import Client
from baton.bench.parity import compare_replies
from baton.bench.questions import EXAMPLES, QUESTIONS, read_questions

TASK = Path(__file__).parent / "lm_eval/arithmetic.yaml"
FLAGS = ("--device", "cpu", "--dtype", "float32", "--max-model-len", "2048", "--kv-cache-tokens", "32768")


def main() -> None:
    """Ask, compare, write the result file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="Hugging Face folder")
    parser.add_argument("--lm-eval", type=Path, help="the lm_eval command of an environment of its own")
    parser.add_argument("--questions", type=int, default=200)
    parser.add_argument("--output", type=Path, help="result file (JSON)")
    args = parser.parse_args()
    with ExitStack() as stack:
        serve = ["serve", str(args.model), "--served-model-name", "model", *FLAGS]
        roles = [[], ["--role", "prefill"], ["--role", "decode"]]
        single, prefill, decode = (start(stack, [*serve, *role], 1) for role in roles)
        workers = ["--prefill", url(prefill), "--decode", url(decode)]
        report: dict[str, Any] = {"machine": machine(), "model": args.model.name, "dtype": "float32"}
        quiz = Quiz(questions=read_questions(QUESTIONS)[: args.questions], examples=read_questions(EXAMPLES)[:5])
        first = ask(url(single), quiz)
        report["single"] = figures(quiz, first)
        for mode in ("push", "pull"):
            router = start(stack, ["route", "--mode", mode, *workers], 1)
            graded = ask(url(router), quiz)
            found = compare_replies(first.replies, graded.replies)
            same = found.num_compared - len(found.differences)
            report[mode] = figures(quiz, graded) | {"same_answers": same, "by_tokens": found.by_tokens}
        if args.lm_eval:
            report["lm_eval"] = lm_eval(args.lm_eval.absolute(), args.model.resolve(), url(single), args.questions)
    print(json.dumps(report, indent=2))
    if args.output:
        write_report(report, args.output)
    sys.exit(not agrees(report))


def ask(server: str, quiz: Quiz) -> Graded:
    """All questions, of one server."""

    async def asking() -> Graded:
        async with Client(server) as client:
            return await ask_all(client, quiz, "model")

    return asyncio.run(asking())


def figures(quiz: Quiz, graded: Graded) -> dict[str, Any]:
    """What a run came to."""
    found = score(quiz, graded, "model")
    told = ("accuracy", "num_right", "num_questions", "num_errors", "invalid_rate", "total_output_tokens")
    return {name: found[name] for name in told}


def agrees(report: dict[str, Any]) -> bool:
    """Every answer is the same, to the token, and every score."""
    single = report["single"]
    pairs = [report[mode] for mode in ("push", "pull")]
    scores = {each["accuracy"] for each in [single, *pairs]}
    if "lm_eval" in report:
        scores.add(report["lm_eval"]["score"])
    return len(scores) == 1 and all(
        each["by_tokens"] and each["same_answers"] == single["num_questions"] for each in pairs
    )


def lm_eval(command: Path, model: Path, server: str, questions: int) -> dict[str, Any]:
    """The score of the single engine as lm-eval finds it."""
    with tempfile.TemporaryDirectory() as folder:
        for file in (QUESTIONS, EXAMPLES, TASK):
            shutil.copy(file, folder)
        arguments = f"model=model,base_url={server}/v1/completions,num_concurrent=8,max_length=2048"
        arguments += f",tokenizer_backend=huggingface,tokenizer={model},tokenized_requests=False"
        options = ["--model", "local-completions", "--model_args", arguments, "--include_path", "."]
        options += ["--tasks", "arithmetic_words", "--limit", str(questions), "--output_path", "out"]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(Path(folder, "cache"))}
        subprocess.run([command, "run", *options], cwd=folder, env=environment, stdout=sys.stderr, check=True)
        (file,) = Path(folder, "out").rglob("results_*.json")
        found = json.loads(file.read_text())
    return {
        "score": found["results"]["arithmetic_words"]["exact_match,last-number"],
        "version": found["lm_eval_version"],
    }


if __name__ == "__main__":
    main()
