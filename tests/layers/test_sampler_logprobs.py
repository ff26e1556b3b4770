"""Log-probabilities against torch's log_softmax of the raw logits."""

import pytest
import torch

from baton.core.request import Request, TokenLogprobs
from baton.core.sampling import SamplingParams
from baton.core.step import SampleRow
from baton.layers import logprobs
from baton.layers.logprobs import token_logprobs
from baton.layers.sampler import Sampler

pytestmark = pytest.mark.torch


def expected(logits: torch.Tensor, token: int, count: int) -> TokenLogprobs:
    values = logits.to(torch.float64).log_softmax(-1)
    top = sorted(range(len(values)), key=lambda i: (-values[i].item(), i))[:count]
    rank = 1 + sum(value > values[token] for value in values).item()
    return TokenLogprobs(
        token_id=token, logprob=values[token].item(), rank=rank, top=tuple((i, values[i].item()) for i in top)
    )


def same(got: TokenLogprobs, want: TokenLogprobs) -> bool:
    return (
        (got.token_id, got.rank) == (want.token_id, want.rank)
        and [i for i, _ in got.top] == [i for i, _ in want.top]
        and [x for _, x in got.top] == pytest.approx([x for _, x in want.top], abs=1e-5)
        and got.logprob == pytest.approx(want.logprob, abs=1e-5)
    )


@pytest.mark.parametrize("k", [0, 1, 5, 90])
def test_chunks_of_a_prompt(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(23, 60, generator=generator) * 3).to(torch.bfloat16)  # rounding makes ties
    targets = torch.randint(60, (23,), generator=generator)
    whole = token_logprobs(logits, targets, k)
    monkeypatch.setattr(logprobs, "_CHUNK_ELEMENTS", 5 * 60)  # 5 pieces
    for tensors in (whole, token_logprobs(logits, targets, k)):
        for i, value in enumerate(tensors.to_values([k] * 23)):
            assert same(value, expected(logits[i], int(targets[i]), k))


def test_no_rows_give_no_values() -> None:
    assert token_logprobs(torch.zeros(0, 10), torch.zeros(0, dtype=torch.int64), 3).to_values([]) == ()


def test_equal_tokens_share_a_rank_and_come_by_id() -> None:
    value = token_logprobs(torch.tensor([[1.0, 3.0, 1.0, 1.0, 0.0]]), torch.tensor([3]), 4).to_values([4])[0]
    assert value.rank == 2
    assert [token for token, _ in value.top] == [1, 0, 2, 3]


def test_sampled_rows_report_raw_logits_whatever_shaped_the_draw() -> None:
    sampler = Sampler(vocab_size=30, max_num_seqs=4, device=torch.device("cpu"))
    wanted = [2, None, 0, 20]
    for slot, count in enumerate(wanted):
        params = SamplingParams(
            seed=slot, temperature=3.0, top_k=4, logit_bias={3: 50.0}, presence_penalty=2.0, logprobs=count
        )
        sampler.admit(slot, Request(request_id="r", prompt_token_ids=(1,), params=params), 0)
    rows = [SampleRow(chunk=i, slot=i, position=4, num_output_tokens=3) for i in range(4)]
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    output = sampler.sample(logits, rows, torch.full((4, 8), 3, dtype=torch.int32)).to_host()
    assert output.token_ids.tolist() == [3, 3, 3, 3]
    for i, (value, count) in enumerate(zip(output.logprob_values(), wanted, strict=True)):
        if count is None:
            assert value is None
        else:
            assert value is not None
            assert len(value.top) == count
            assert same(value, expected(logits[i], 3, count))


def test_nothing_is_computed_when_nobody_asks() -> None:
    sampler = Sampler(vocab_size=5, max_num_seqs=1, device=torch.device("cpu"))
    sampler.admit(0, Request(request_id="r", prompt_token_ids=(1,), params=SamplingParams(temperature=0)), 0)
    row = SampleRow(chunk=0, slot=0, position=1, num_output_tokens=0)
    output = sampler.sample(torch.zeros(1, 5), [row], torch.zeros(1, 2, dtype=torch.int32))
    assert output.logprobs is None
    assert output.logprob_values() == (None,)
