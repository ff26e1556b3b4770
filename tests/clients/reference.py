"""The tasks of lm-eval computed directly with transformers: `reference.py MODEL.gguf TOKENIZER_FOLDER OUT.json`.

Runs in Baton's venv, but uses nothing of Baton's: transformers reads the weights of the GGUF file, in float32.
OUT has for each task its score and, item by item, the text that was generated or [logprob, is greedy] of each choice.
"""

from __future__ import annotations

import json
import string
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

HERE = Path(__file__).parent
MAX_TOKENS = 12  # max_gen_toks of tasks/capitals.yaml


class Reference:
    """One model, asked the way the tasks' YAML files say."""

    def __init__(self, gguf: Path, tokenizer: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(tokenizer)
        self.model = LlamaForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32).eval()
        own = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
        text = (HERE / "data/common.jsonl").read_text(encoding="utf-8")
        assert own.encode(text) == self.tokenizer.encode(text), "the tokenizer is not the one of the GGUF file"

    def generated(self, item: dict[str, Any]) -> str:
        """Greedy text up to a line's end."""
        prompt = f"Q: What is the largest planet?\nA: Jupiter\n\nQ: {item['question']}\nA:"
        ids = torch.tensor([self.tokenizer.encode(prompt)])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=MAX_TOKENS, do_sample=False)
        text: str = self.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return text.split("\n")[0]

    def scored(self, item: dict[str, Any]) -> list[tuple[float, bool]]:
        """For each choice the logprob of its tokens behind the question, and whether each is the most likely."""
        context = f"Q: {item['question']}\nA:"
        length = len(self.tokenizer.encode(context))
        found = []
        for choice in item["choices"]:
            ids = torch.tensor([self.tokenizer.encode(f"{context} {choice}")])
            logprobs = self.model(ids).logits[0, length - 1 : -1].log_softmax(-1)
            told = ids[0, length:]
            own = logprobs.gather(1, told[:, None]).sum().item()
            found.append((own, bool((logprobs.argmax(-1) == told).all())))
        return found


def _plain(text: str) -> str:
    return text.strip().lower().translate(str.maketrans("", "", string.punctuation))


def _items(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (HERE / "data" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def main(gguf: str, tokenizer: str, out: str) -> None:
    """Compute both tasks."""
    torch.set_num_threads(1)
    reference = Reference(Path(gguf), Path(tokenizer))
    with torch.inference_mode():
        capitals, common = _items("capitals"), _items("common")
        texts = [reference.generated(item) for item in capitals]
        choices = [reference.scored(item) for item in common]
    right = [_plain(text) == _plain(item["answer"]) for text, item in zip(texts, capitals, strict=True)]
    picked = [max(range(len(one)), key=lambda i: one[i][0]) for one in choices]
    hits = [pick == item["target"] for pick, item in zip(picked, common, strict=True)]
    found = {
        "capitals": {"score": sum(right) / len(right), "items": texts},
        "common": {"score": sum(hits) / len(hits), "items": choices},
    }
    Path(out).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
