"""A row's token depends on nothing but the row: not on its batch, and hardly on the last bits of its logits."""

import pytest
import torch

from baton.core.request import Request
from baton.core.sampling import SamplingParams
from baton.core.step import SampleRow
from baton.layers import draw
from baton.layers.constraints import TokenMask
from baton.layers.sampler import SampleOutput, Sampler

pytestmark = pytest.mark.torch

VOCAB = 3001
PARAMS = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.7},
    {"top_k": 20},
    {"top_k": 400, "temperature": 2.0},
    {"top_p": 0.9},
    {"top_p": 0.97, "temperature": 3.0},
    {"min_p": 0.05},
    {"min_p": 1e-4, "top_p": 0.95, "temperature": 3.0},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.01},
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "top_k": 5},
    {"logit_bias": {3: 5.0, 17: -2.0}, "logprobs": 3},
    {"allowed_token_ids": tuple(range(0, 3000, 7)), "logprobs": 0},
    {"bad_words_token_ids": ((5,), (1, 2, 9)), "min_tokens": 100, "max_tokens": 200},
    {"top_p": 0.5, "temperature": 0.3},
]


def make(device: str = "cpu") -> tuple[Sampler, torch.Tensor]:
    """A sampler with a differently configured sequence in each of 16 slots, and their tokens."""
    sampler = Sampler(vocab_size=VOCAB, max_num_seqs=16, device=torch.device(device))
    generator = torch.Generator().manual_seed(0)
    table = torch.randint(VOCAB, (16, 300), generator=generator, dtype=torch.int32)
    for slot, fields in enumerate(PARAMS):
        prompt = tuple(table[slot, :40].tolist())
        params = SamplingParams(seed=slot % 3, **fields)
        request = Request(request_id=str(slot), prompt_token_ids=prompt, params=params, eos_token_ids=frozenset({2}))
        sampler.admit(slot, request, slot % 2)
    return sampler, table.to(device)


def row(slot: int, position: int) -> SampleRow:
    return SampleRow(chunk=slot, slot=slot, position=position, num_output_tokens=position - 40)


def flat(output: SampleOutput, i: int) -> tuple[object, ...]:
    return output.token_ids[i].item(), output.logprob_values()[i]


def test_a_row_alone_gives_the_bits_it_gives_in_a_batch_of_16() -> None:
    sampler, table = make()
    generator = torch.Generator().manual_seed(1)
    for position in range(40, 60):
        logits = torch.randn(16, VOCAB, generator=generator) * 2
        order = torch.randperm(16, generator=generator).tolist()
        batch = sampler.sample(logits[order], [row(slot, position) for slot in order], table)
        for place, slot in enumerate(order):
            alone = sampler.sample(logits[slot : slot + 1], [row(slot, position)], table)
            assert flat(alone, 0) == flat(batch, place), PARAMS[slot]


def test_seed_sequence_and_position_each_matter() -> None:
    sampler = Sampler(vocab_size=VOCAB, max_num_seqs=3, device=torch.device("cpu"))
    for slot, (seed, index) in enumerate([(1, 0), (1, 1), (2, 0)]):
        request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(seed=seed))
        sampler.admit(slot, request, index)
    rows = [row(slot, position) for slot in range(3) for position in (40, 41)]
    tokens = sampler.sample(torch.zeros(6, VOCAB), rows, torch.zeros(3, 300, dtype=torch.int32)).token_ids
    assert tokens.unique().numel() == 6  # 3001 equally likely tokens: a chance repeat has odds of 1 in 200


def test_admission_forgets_the_sequence_before() -> None:
    sampler, table = make()
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(2))
    fresh = Sampler(vocab_size=VOCAB, max_num_seqs=16, device=torch.device("cpu"))
    request = Request(request_id="new", prompt_token_ids=(1, 2), params=SamplingParams(seed=5))
    for one in (sampler, fresh):
        one.admit(14, request, 0)
    tokens = [one.sample(logits, [row(14, 77)], table).token_ids.item() for one in (sampler, fresh)]
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("fields", [{}, {"top_k": 40}, {"top_p": 0.9}])
def test_last_bits_of_the_logits_almost_never_change_a_token(fields: dict[str, object]) -> None:
    number = 2000
    sampler = Sampler(vocab_size=VOCAB, max_num_seqs=1, device=torch.device("cpu"))
    sampler.admit(0, Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(seed=1, **fields)), 0)
    rows = [row(0, 40 + i) for i in range(number)]
    logits = torch.randn(number, VOCAB, generator=torch.Generator().manual_seed(3)) * 2
    nudged = logits + torch.randn(number, VOCAB, generator=torch.Generator().manual_seed(4)) * 1e-6
    table = torch.zeros(1, 1, dtype=torch.int32)
    first, second = (sampler.sample(x, rows, table).token_ids for x in (logits, nudged))
    assert (first != second).sum() <= 1  # odds per token: about 1e-6 times a few


def test_candidates_give_the_tokens_of_the_whole_vocabulary() -> None:
    """top_k = V - 1 goes by candidates and drops one token; elsewhere it must agree with no filter at all."""
    number = 500
    sampler = Sampler(vocab_size=VOCAB, max_num_seqs=2, device=torch.device("cpu"))
    for slot, fields in enumerate([{}, {"top_k": VOCAB - 1}]):
        request = Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(seed=1, **fields))
        sampler.admit(slot, request, 0)
    logits = torch.randn(number, VOCAB, generator=torch.Generator().manual_seed(5))
    table = torch.zeros(2, 1, dtype=torch.int32)
    whole, few = (sampler.sample(logits, [row(s, 40 + i) for i in range(number)], table).token_ids for s in (0, 1))
    kept = whole != logits.argmin(-1)
    assert kept.sum() > number - 10
    assert torch.equal(whole[kept], few[kept])


def test_candidates_looked_at_first_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """top_p with few candidates that are widened on demand, against all of them at once."""
    sampler, table = make()
    rows = [row(slot, position) for slot in (5, 6, 8, 15) for position in range(40, 90)]
    logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(6))
    results = []
    for width in (2, 256, VOCAB):
        monkeypatch.setattr(draw, "_FIRST_WIDTH", width)
        results.append(sampler.sample(logits, rows, table).token_ids)
    assert torch.equal(results[0], results[2])
    assert torch.equal(results[1], results[2])


def test_an_extreme_temperature_gives_no_nan() -> None:
    sampler = Sampler(vocab_size=4, max_num_seqs=2, device=torch.device("cpu"))
    for slot, temperature in enumerate([1e-5, 1e300]):
        params = SamplingParams(seed=1, temperature=temperature, allowed_token_ids=(1, 2))
        sampler.admit(slot, Request(request_id="r", prompt_token_ids=(1,), params=params), 0)
    rows = [row(slot, 40 + i) for slot in (0, 1) for i in range(100)]
    logits = torch.tensor([3e4, 1.0, 1.5, 9.0]).repeat(200, 1)
    tokens = sampler.sample(logits, rows, torch.zeros(2, 1, dtype=torch.int32)).token_ids
    assert (tokens[:100] == 2).all()
    assert set(tokens[100:].tolist()) == {1, 2}


def test_logits_are_left_as_they_are() -> None:
    sampler, table = make()
    logits = torch.randn(16, VOCAB)
    copy = logits.clone()
    mask = TokenMask(rows=(0, 3), bits=torch.full((2, -(-VOCAB // 32)), 0x55555555, dtype=torch.int32))
    sampler.sample(logits, [row(slot, 50) for slot in range(16)], table, mask)
    assert torch.equal(logits, copy)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits_for_the_device_and_rows_do_not_depend_on_the_batch() -> None:
    sampler, table = make("cuda")
    logits = (torch.randn(16, VOCAB, generator=torch.Generator().manual_seed(1)) * 2).cuda()
    mask = TokenMask(rows=(0, 3), bits=torch.full((2, -(-VOCAB // 32)), 0x55555555, dtype=torch.int32))
    rows = [row(slot, 50) for slot in range(16)]
    sampler.sample(logits, rows, table, mask)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch = sampler.sample(logits, rows, table, mask).to_host()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    host_sampler, host_table = make()
    on_host = host_sampler.sample(logits.cpu(), rows, host_table, mask)
    assert (batch.token_ids == on_host.token_ids).sum() >= 15
    for slot in (s for s in range(16) if s not in mask.rows):
        alone = sampler.sample(logits[slot : slot + 1], [rows[slot]], table)
        assert flat(alone, 0) == flat(batch, slot), PARAMS[slot]
