"""A real model from its GGUF file: SmolLM2-135M-Instruct against transformers on the same dequantised weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from baton import LLM, SamplingParams
from tests.conftest import DEVICE

FILE = Path(os.environ.get("BATON_SMOLLM2", Path.home() / ".cache/baton/SmolLM2-135M-Instruct.Q4_1.gguf"))
pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,
    pytest.mark.skipif(not FILE.exists(), reason="scripts/get-model fetches the file"),
]

QUESTIONS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain recursion to a child.",
    "def fibonacci(n):",
    "List three fruits, and say which one is the sweetest.",
    "Translate 'good morning' into Spanish.",
    "Why is the sky blue?",
    "12 + 30 = ?",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What does HTTP stand for?",
    "Name the planets of the solar system.",
    "Tell me a joke about a programmer.",
    "How do birds fly?",
    "Summarise the plot of Cinderella in two sentences.",
    "What is the boiling point of water in Fahrenheit?",
    "caf\u00e9 na\u00efve r\u00e9sum\u00e9",
    "\u4f60\u597d\uff0c\u8bf7\u4ecb\u7ecd\u4e00\u4e0b\u4f60\u81ea\u5df1\u3002",
    "Emoji: \U0001f600\U0001f680",
    "x",
]
GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(FILE, dtype="float32", device=DEVICE, max_model_len=512, max_num_seqs=20) as engine:
        yield engine


@pytest.fixture(scope="module")
def oracle() -> Any:
    """transformers with its own GGUF reader and dequantisation."""
    return AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=FILE.name, dtype=torch.float32).eval()


def test_64_greedy_tokens_equal_on_20_prompts(llm: LLM, oracle: Any) -> None:
    prompts = [llm.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    got = [output.token_ids for output in llm.generate(prompts, GREEDY)]
    llm.check()
    oracle.generation_config.eos_token_id = None
    greedy = GenerationConfig(do_sample=False, max_new_tokens=64, pad_token_id=0)
    for prompt, tokens in zip(prompts, got, strict=True):
        ids = torch.tensor([prompt])
        want = oracle.generate(ids, attention_mask=torch.ones_like(ids), generation_config=greedy)[0, len(prompt) :]
        assert tokens == want.tolist()


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    output = llm.chat([{"role": "user", "content": QUESTIONS[0]}], SamplingParams(temperature=0.0, max_tokens=30))[0]
    assert "Paris" in output.text
    assert output.finish_reason == "stop"
