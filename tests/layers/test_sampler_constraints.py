"""Hard constraints and edges of filters, where one exact answer is right."""

import pytest
import torch

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.step import SampleRow
from baton.layers.constraints import TokenMask
from baton.layers.sampler import Sampler

pytestmark = pytest.mark.torch

GREEDY = {"temperature": 0.0}
EOS = 9


def sample(
    logits: list[float],
    fields: dict[str, object],
    *,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    allowed_bits: int | None = None,
    number: int = 1,
) -> list[int]:
    """Tokens of `number` sequences (seeds 0, 1, ..) with this history."""
    sampler = Sampler(vocab_size=len(logits), max_num_seqs=number, device=torch.device("cpu"))
    for seed in range(number):
        params = SamplingParams(**{"seed": seed, **fields})
        request = Request(
            request_id=str(seed), prompt_token_ids=prompt, params=params, eos_token_ids=frozenset({EOS, 1000})
        )
        sampler.admit(seed, request, 0)
    table = torch.tensor([*prompt, *output, 0], dtype=torch.int32).repeat(number, 1)
    position = len(prompt) + len(output)
    rows = [SampleRow(chunk=i, slot=i, position=position, num_output_tokens=len(output)) for i in range(number)]
    mask = None
    if allowed_bits is not None:
        bits = torch.full((number, 1), allowed_bits, dtype=torch.int32)
        mask = TokenMask(rows=tuple(range(number)), bits=bits)
    return sampler.sample(torch.tensor([logits] * number), rows, table, mask).token_ids.tolist()


RISING = [float(i) for i in range(10)]


@pytest.mark.parametrize(
    ("words", "prompt", "output", "expected"),
    [
        (((9,),), (1,), (), 8),  # one token: never
        (((4, 9),), (1,), (3, 4), 8),  # completes the word
        (((4, 9),), (1,), (4, 3), 9),  # the word was interrupted
        (((4, 9),), (4,), (), 9),  # the prompt is not output
        (((3, 4, 9),), (3,), (4,), 9),  # starts in the prompt
        (((3, 4, 9),), (1,), (3, 4), 8),
        (((3, 4, 9), (8,)), (1,), (3, 4), 7),
        (((3, 9), (4, 9)), (1,), (4,), 8),  # one of two words with the same end matches
        (((4, 9), (3, 9)), (1,), (4,), 8),
        (((4, 9), (9,)), (1,), (3,), 8),
    ],
)
def test_bad_words(
    words: tuple[tuple[int, ...], ...], prompt: tuple[int, ...], output: tuple[int, ...], expected: int
) -> None:
    fields = {**GREEDY, "bad_words_token_ids": words}
    assert sample(RISING, fields, prompt=prompt, output=output) == [expected]


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    assert sample([1.0, 5.0, 2.0, 5.0, 5.0], GREEDY) == [1]


def test_greedy_obeys_bias_and_penalties() -> None:
    assert sample(RISING, {**GREEDY, "logit_bias": {2: 8.0}}) == [2]
    assert sample(RISING, {**GREEDY, "presence_penalty": 1.5}, output=(9,)) == [8]
    assert sample(RISING, {**GREEDY, "presence_penalty": 1.5}, prompt=(9,)) == [9]  # the prompt does not count
    assert sample(RISING, {**GREEDY, "repetition_penalty": 1.5}, prompt=(9,)) == [8]  # here it does


EDGES = [
    # of equal tokens at the edge the lowest ids stay
    ([2.0, 3.0, 2.0, 2.0, 1.0], {"top_k": 2}, {0, 1}),
    ([0.0] * 40, {"top_k": 3}, {0, 1, 2}),
    ([0.0] * 40, {"top_p": 0.1}, {0, 1, 2, 3}),  # 4 of 40 reach 0.1 exactly
    ([0.0] * 40, {"top_p": 0.11}, {0, 1, 2, 3, 4}),  # the token that crosses stays
    ([0.0] * 40, {"top_k": 20, "top_p": 0.1}, {0, 1}),  # mass is counted among the 20
    ([0.0] * 40, {"top_k": 1000}, set(range(40))),
    ([0.0] * 600, {"top_p": 0.5}, set(range(300))),  # more than the first look at candidates
    ([0.0, 0.0, 0.0, -5.0], {"min_p": 1.0}, {0, 1, 2}),
    ([0.0, -0.69, -0.70, -9.0], {"min_p": 0.5}, {0, 1}),  # log 0.5 is -0.6931
    ([0.0, -0.69, -0.70, -9.0], {"min_p": 0.5, "top_p": 0.99}, {0, 1}),
    ([0.0, -0.35, -1.0], {"min_p": 0.5, "temperature": 0.5}, {0}),  # -0.7 after temperature
    ([4.0, 3.0, 2.0], {"top_p": 1e-9}, {0}),
]


@pytest.mark.parametrize(("logits", "fields", "survivors"), EDGES, ids=str)
def test_exactly_these_tokens_survive(logits: list[float], fields: dict[str, object], survivors: set[int]) -> None:
    # 40 draws for each token on average: to miss one of 300 has odds of 300 * exp(-40).
    assert set(sample(logits, fields, number=max(400, 40 * len(survivors)))) == survivors


def test_a_grammar_mask_holds() -> None:
    assert sample(RISING, GREEDY, allowed_bits=0b0000101000) == [5]
    assert set(sample([0.0] * 10, {}, allowed_bits=0b0000101000, number=200)) == {3, 5}


def test_the_mask_touches_only_its_rows() -> None:
    sampler = Sampler(vocab_size=10, max_num_seqs=3, device=torch.device("cpu"))
    for slot in range(3):
        sampler.admit(slot, Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(**GREEDY)), 0)
    rows = [SampleRow(chunk=i, slot=i, position=1, num_output_tokens=0) for i in range(3)]
    mask = TokenMask(rows=(1,), bits=torch.tensor([[0b100]], dtype=torch.int32))
    output = sampler.sample(torch.tensor([RISING] * 3), rows, torch.zeros(3, 4, dtype=torch.int32), mask)
    assert output.token_ids.tolist() == [9, 2, 9]


@pytest.mark.parametrize(
    ("fields", "bits", "expected"),
    [
        ({"min_tokens": 5}, 1 << EOS, EOS),  # the grammar is complete: the end wins over min_tokens
        ({"allowed_token_ids": (2, 3)}, 0b0011110000, 7),  # no token is in both: the grammar wins
        ({"allowed_token_ids": (2, 5)}, 0b0011110000, 5),
        ({"allowed_token_ids": (2, EOS), "min_tokens": 5}, None, 2),
        ({"allowed_token_ids": (EOS,), "min_tokens": 5}, None, EOS),  # allowed_token_ids wins over min_tokens
        ({"allowed_token_ids": (3,), "bad_words_token_ids": ((3,),)}, None, 3),
    ],
)
def test_contradictions_leave_the_stronger_constraint(
    fields: dict[str, object], bits: int | None, expected: int
) -> None:
    assert sample(RISING, {**GREEDY, **fields}, allowed_bits=bits) == [expected]
