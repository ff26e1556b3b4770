"""How byte-level BPE vocabularies cut text before merging, by the name in `tokenizer.ggml.pre` of a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, normalizers, pre_tokenizers

# Split patterns of the published tokenizer.json files of each family.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# llama.cpp's patterns for files that name no splitter, applied one after the other.
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreSplit:
    """What a `tokenizer.ggml.pre` name stands for.

    Attributes:
        patterns: split by each in turn, matches and gaps kept.
        single_digits: every digit stands alone.
        gpt2_regex: split by GPT-2's own pattern at the end.
        nfc: compose Unicode first.
        ignore_merges: a piece that is a token as a whole is taken as it is.
        add_bos: default when the file does not say.
    """

    patterns: tuple[str, ...] = ()
    single_digits: bool = False
    gpt2_regex: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The splitter, mapping to byte-level characters included."""
        steps: list[pre_tokenizers.PreTokenizer] = [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in self.patterns
        ]
        if self.single_digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2_regex))
        return pre_tokenizers.Sequence(steps)

    def normalizer(self) -> normalizers.Normalizer | None:
        """NFC or nothing."""
        return normalizers.NFC() if self.nfc else None


_LLAMA3_SPLIT = PreSplit(patterns=(_LLAMA3,), ignore_merges=True, add_bos=True)
_QWEN2_SPLIT = PreSplit(patterns=(_QWEN2,), nfc=True)
_DIGITS_SPLIT = PreSplit(single_digits=True, gpt2_regex=True)
PRE_SPLITS = {
    "default": PreSplit(patterns=_DEFAULT),
    "gpt-2": PreSplit(gpt2_regex=True),
    "smollm": _DIGITS_SPLIT,
    "starcoder": _DIGITS_SPLIT,
    "llama-bpe": _LLAMA3_SPLIT,
    "llama3": _LLAMA3_SPLIT,
    "llama-v3": _LLAMA3_SPLIT,
    "qwen2": _QWEN2_SPLIT,
    "deepseek-r1-qwen": _QWEN2_SPLIT,
}
"""By name; "default" also serves files that name none."""
