"""`tests/clients/run`: serves a model twice, runs the clients one after another, prints the table."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from tests.clients.clients import CLIENTS, Row, Site
from tests.clients.tokenizer_folder import write_tokenizer
from tests.clients.venvs import HERE
from tests.cluster.serving import Server

NAME, KEY, MAX_MODEL_LEN = "SmolLM2-135M-Instruct", "a-key", 2048
STOP_TIMEOUT_S = 45


def _serve(model: Path, *flags: str) -> Server:
    command = [sys.executable, "-m", "baton", "serve", str(model), "--served-model-name", NAME, *flags]
    command += ["--host", "127.0.0.1", "--port", "0", "--device", "cpu", "--max-model-len", str(MAX_MODEL_LEN)]
    return Server([*command, "--dtype", "float32", "--tool-parser", "hermes"])


def _rows(site: Site, chosen: list[str]) -> Iterator[Row]:
    """Rows of each client; a client that does not run to its end is a failed row."""
    for name in chosen:
        print(f"{name} ...", file=sys.stderr)
        try:
            yield from CLIENTS[name](site)
        except (RuntimeError, subprocess.SubprocessError, OSError, ValueError, KeyError) as error:
            note = f"{type(error).__name__}: {error}"
            yield Row(client=name, version="", check="runs to its end", ok=False, note=note)


def _stops(server: Server, label: str) -> Row:
    """SIGTERM ends a server that has served all this: exit code 0 and no engine left."""
    server.process.send_signal(signal.SIGTERM)
    try:
        code: object = server.exit(STOP_TIMEOUT_S)
    except (subprocess.TimeoutExpired, AssertionError) as error:
        code = error
    tracebacks = server.stderr().count("Traceback")
    note = f"exit code {code}, {tracebacks} tracebacks in its log"
    return Row(client="baton", version="", check=f"{label} ends on SIGTERM", ok=code == 0 and not tracebacks, note=note)


def _print_table(rows: list[Row]) -> None:
    cells = [("client", "version", "check", "", "note")]
    for row in rows:
        note = " ".join(row.note.split())
        note = note if not row.ok or len(note) <= 90 else note[:87] + "..."
        cells.append((row.client, row.version, row.check, "ok" if row.ok else "FAILED", note))
    widths = [max(len(cell[i]) for cell in cells) for i in range(4)]
    for cell in cells:
        print("  ".join(text.ljust(width) for text, width in zip(cell, widths, strict=False)), cell[4], sep="  ")


def _run(options: argparse.Namespace) -> list[Row]:
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="baton-clients-")))
        tokenizer = work / "tokenizer"
        tokenizer.mkdir()
        write_tokenizer(options.model, tokenizer, MAX_MODEL_LEN)
        plain = stack.enter_context(_serve(options.model, "--kv-cache-tokens", "16384")).ready()
        narrow = ("--max-num-seqs", "1", "--max-queue", "1", "--kv-cache-tokens", "4096", "--api-key", KEY)
        keyed = stack.enter_context(_serve(options.model, *narrow)).ready()
        site = Site(
            model=options.model,
            name=NAME,
            url=plain.url,
            keyed_url=keyed.url,
            key=KEY,
            tokenizer=tokenizer,
            work=work,
            vllm=options.vllm_venv and options.vllm_venv.resolve() / "bin",
        )
        rows = list(_rows(site, options.only or list(CLIENTS)))
        return [*rows, _stops(plain, "the server"), _stops(keyed, "the one with a key")]


def main() -> int:
    """Exit code 0 if every check passed."""
    parser = argparse.ArgumentParser(description="Unmodified clients against `baton serve`.")
    parser.add_argument("model", type=Path, nargs="?", help="a .gguf file; by default the one of scripts/get-model")
    parser.add_argument(
        "--only", action="append", choices=list(CLIENTS), help="this client; may be given several times"
    )
    parser.add_argument("--vllm-venv", type=Path, default=os.environ.get("BATON_VLLM_VENV"), help="a venv with vLLM")
    parser.add_argument("--timeout-s", type=int, default=1800, help="for all of it, installing included")
    options = parser.parse_args()
    options.vllm_venv = options.vllm_venv and Path(options.vllm_venv)
    # Two servers and a client share the machine; more threads than cores make each of them many times slower.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.signal(signal.SIGTERM, _time_is_up)
    signal.alarm(options.timeout_s)
    if options.model is None:
        found = subprocess.run([HERE.parents[1] / "scripts/get-model"], check=True, stdout=subprocess.PIPE, text=True)
        options.model = Path(found.stdout.strip())
    options.model = options.model.resolve()
    rows = _run(options)
    _print_table(rows)
    failed = sum(not row.ok for row in rows)
    print(f"\n{len(rows) - failed} of {len(rows)} ok")
    return 1 if failed else 0


def _time_is_up(signum: int, frame: object) -> None:
    """Unwind through everything that ends a process."""
    raise SystemExit(f"ended by {signal.Signals(signum).name}")


if __name__ == "__main__":
    sys.exit(main())
