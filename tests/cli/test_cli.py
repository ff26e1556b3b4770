"""The command line in processes of its own: output, exit codes, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch


def baton(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "baton", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=os.environ | {"NO_COLOR": "1", "COLUMNS": "200"},
    )


def test_generate_prints_the_text_alone_on_stdout(text_model: Path) -> None:
    arguments = ("generate", str(text_model), "--prompt", "Once", "--max-tokens", "8", "--device", "cpu")
    first, second = baton(*arguments), baton(*arguments)
    assert first.returncode == 0, first.stderr
    assert len(first.stdout) > 1
    assert first.stdout == second.stdout
    assert "KV cache:" in first.stderr and "maximum concurrency" in first.stderr


def test_generate_many_in_their_order(text_model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("two\nthree\n")
    done = baton(
        "generate", str(text_model), "--prompt", "one", "--prompt-file", str(prompts), "--max-tokens", "4", "--n", "2"
    )
    assert done.returncode == 0, done.stderr
    heads = [line for line in done.stdout.splitlines() if line.startswith("--- ")]
    assert [head.split(" (")[0] for head in heads] == [
        f"--- '{prompt}' [{index}]" for prompt in ("one", "two", "three") for index in (0, 1)
    ]


def test_chat_reads_lines_until_the_end_of_input(text_model: Path) -> None:
    done = baton("chat", str(text_model), "--max-tokens", "5", "--device", "cpu", stdin="hello\nagain\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("[TTFT ") == 2


def test_help_lists_every_engine_option() -> None:
    done = baton("generate", "--help")
    assert done.returncode == 0
    for flag in ("--dtype", "--kv-cache-tokens", "--max-model-len", "--no-async-scheduling", "--load-format"):
        assert flag in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "/nowhere", "--prompt", "x"], "/nowhere"),
        (["generate", "MODEL"], "--prompt"),
        (["generate", "MODEL", "--prompt", "x", "--max-model-len", "100000"], "max_model_len"),
        (["generate", "MODEL", "--prompt", "x", "--temperature", "-1"], "temperature"),
        (["generate", "MODEL", "--prompt", "x", "--dtype", "int3"], "dtype must be one of"),
        (["generate", "MODEL", "--prompt-file", "/nowhere.txt"], "/nowhere.txt"),
        (["chat", "MODEL", "--device", "tpu", "--message", "x"], "device must be"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_exit_code_2(text_model: Path, arguments: list[str], words: str) -> None:
    done = baton(*[str(text_model) if argument == "MODEL" else argument for argument in arguments])
    assert done.returncode == 2
    lines = done.stderr.strip().splitlines()
    assert lines[-1].startswith("baton: ") and words in lines[-1]
    assert "Traceback" not in done.stderr
