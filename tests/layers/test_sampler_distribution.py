"""Sampled frequencies against probabilities computed plainly in float64, for every filter alone and combined.

20,000 draws over 50 tokens, fixed seeds, chi-square with p > 1e-4; the same draws must reject the distribution
without the filter, so that no case passes for want of power.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.step import SampleRow
from baton.layers.sampler import Sampler

pytestmark = pytest.mark.torch

VOCAB = 50
DRAWS = 20_000
EOS = 7
PROMPT = (1, 2, 3, 3, 40)
OUTPUT = (5, 3, 5, 9, 12, 5)
LOGITS = np.random.default_rng(20).normal(0.0, 1.5, VOCAB).astype(np.float32)


def reference(params: SamplingParams) -> np.ndarray:
    """Probabilities of the token after PROMPT + OUTPUT, step by step from the definitions."""
    logits = constrained(LOGITS.astype(np.float64), params)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    logits = penalised(logits, params) / params.temperature
    p = np.exp(logits - logits.max())
    p /= p.sum()
    p[p < params.min_p * p.max()] = 0.0
    ranking = np.argsort(-p, kind="stable")
    if params.top_k > 0:
        p[ranking[params.top_k :]] = 0.0
    p /= p.sum()
    mass = 0.0
    for token in ranking:
        if mass >= params.top_p:
            p[token] = 0.0
        mass += p[token]
    return p / p.sum()


def constrained(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    for token in range(VOCAB):
        if params.allowed_token_ids is not None and token not in params.allowed_token_ids:
            logits[token] = -math.inf
        if len(OUTPUT) < params.min_tokens and (token == EOS or token in params.stop_token_ids):
            logits[token] = -math.inf
        for word in params.bad_words_token_ids:
            if word[-1] == token and OUTPUT[len(OUTPUT) - len(word) + 1 :] == word[:-1]:
                logits[token] = -math.inf
    return logits


def penalised(logits: np.ndarray, params: SamplingParams) -> np.ndarray:
    for token in set(PROMPT + OUTPUT):
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token, count in Counter(OUTPUT).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    return logits


def draws(params: SamplingParams, number: int = DRAWS) -> np.ndarray:
    """Tokens of `number` sequences with seeds 0, 1, 2 .. and the same history, in one batch."""
    sampler = Sampler(vocab_size=VOCAB, max_num_seqs=number, device=torch.device("cpu"))
    for seed in range(number):
        request = Request(
            request_id=str(seed),
            prompt_token_ids=PROMPT,
            params=replace(params, seed=seed),
            eos_token_ids=frozenset({EOS}),
        )
        sampler.admit(seed, request, 0)
    # What lies beyond the known tokens must not count: fill it with a token that penalties would see.
    history = torch.tensor([*PROMPT, *OUTPUT, 9, 9, 9], dtype=torch.int32).repeat(number, 1)
    position = len(PROMPT) + len(OUTPUT)
    rows = [SampleRow(chunk=i, slot=i, position=position, num_output_tokens=len(OUTPUT)) for i in range(number)]
    return sampler.sample(torch.from_numpy(LOGITS).repeat(number, 1), rows, history).token_ids.numpy()


def p_value(tokens: np.ndarray, probabilities: np.ndarray) -> float:
    """Chi-square; tokens expected fewer than 5 times share a bin. 0 if an impossible token occurs."""
    counts = np.bincount(tokens, minlength=VOCAB)
    if counts[probabilities == 0.0].any():
        return 0.0
    expected = probabilities * len(tokens)
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    possible = expected > 0
    if possible.sum() == 1:
        return 1.0
    return float(stats.chisquare(counts[possible], expected[possible]).pvalue)


CASES = {
    "temperature below 1": {"temperature": 0.6},
    "temperature above 1": {"temperature": 1.7},
    "top_k": {"top_k": 8},
    "top_k of 1": {"top_k": 1},
    "top_p": {"top_p": 0.7},
    "top_p that keeps one": {"top_p": 0.01},
    "min_p": {"min_p": 0.1},
    "min_p of 1": {"min_p": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.8},
    "repetition_penalty below 1": {"repetition_penalty": 0.6},
    "presence_penalty": {"presence_penalty": 1.3},
    "frequency_penalty": {"frequency_penalty": -0.9},
    "logit_bias": {"logit_bias": {0: 2.0, 4: -100.0, 49: 1.0}},
    "allowed_token_ids": {"allowed_token_ids": (0, 3, 5, 11, 49)},
    "bad words": {"bad_words_token_ids": ((6,), (5, 8), (12, 5, 10), (9, 5, 20), (40, 5, 3, 5, 9, 12, 5, 21))},
    "min_tokens": {"min_tokens": 7, "stop_token_ids": (0, 11)},
    "top_k and top_p": {"top_k": 12, "top_p": 0.8},
    "min_p and top_p": {"min_p": 0.05, "top_p": 0.9, "temperature": 1.4},
    "all truncations": {"temperature": 1.5, "top_k": 20, "top_p": 0.9, "min_p": 0.03},
    "everything": {
        "temperature": 0.9,
        "top_k": 30,
        "top_p": 0.95,
        "min_p": 0.01,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {3: 1.5, 30: 1.0},
        "allowed_token_ids": tuple(range(2, 46)),
        "bad_words_token_ids": ((12, 5, 33), (18,)),
        "min_tokens": 10,
        "stop_token_ids": (20,),
    },
}


@pytest.mark.parametrize("case", CASES)
def test_frequencies(case: str) -> None:
    params = SamplingParams(**CASES[case])
    tokens = draws(params)
    assert p_value(tokens, reference(params)) > 1e-4
    assert p_value(tokens, reference(SamplingParams())) < 1e-6


def test_frequencies_without_any_filter() -> None:
    assert p_value(draws(SamplingParams()), reference(SamplingParams())) > 1e-4


@pytest.mark.parametrize("wrong", [{"temperature": 1.05}, {"top_p": 0.99}, {"logit_bias": {int(LOGITS.argmax()): 0.1}}])
def test_a_slightly_wrong_distribution_is_rejected(wrong: dict[str, object]) -> None:
    assert p_value(draws(SamplingParams()), reference(SamplingParams(**wrong))) < 1e-4


@pytest.mark.parametrize("minimum", [6, 0])
def test_the_end_is_allowed_from_min_tokens_on(minimum: int) -> None:
    # The history holds 6 outputs.
    assert EOS in draws(SamplingParams(min_tokens=minimum, logit_bias={EOS: 3.0}), number=200)


def test_min_tokens_leaves_the_end_alone_when_it_is_ignored() -> None:
    params = SamplingParams(min_tokens=10, ignore_eos=True, logit_bias={EOS: 3.0})
    assert EOS in draws(params, number=200)


def test_positions_of_one_sequence_are_independent_draws() -> None:
    """One seed, consecutive positions: right frequencies, and right frequencies of neighbouring pairs."""
    number = 40_000
    sampler = Sampler(vocab_size=5, max_num_seqs=1, device=torch.device("cpu"))
    sampler.admit(0, Request(request_id="a", prompt_token_ids=(1,), params=SamplingParams(seed=11)), 0)
    rows = [SampleRow(chunk=0, slot=0, position=1 + i, num_output_tokens=i) for i in range(number)]
    p = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    logits = torch.tensor(np.log(p), dtype=torch.float32).repeat(number, 1)
    tokens = sampler.sample(logits, rows, torch.zeros(1, 1, dtype=torch.int32)).token_ids.numpy()
    pairs = np.bincount(tokens[:-1:2] * 5 + tokens[1::2], minlength=25)
    assert stats.chisquare(pairs, np.outer(p, p).flatten() * number / 2).pvalue > 1e-4
