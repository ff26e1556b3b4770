"""The Python front on a tiny model: texts, stops, logprobs, grammars, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from baton import LLM, Grammar, GrammarKind, SamplingParams
from baton.core.errors import ConfigError, EngineDeadError, ModelError, RequestError
from tests.conftest import DEVICE, END, VOCAB
from tests.models.harness import TINY, save_oracle

pytestmark = pytest.mark.torch

PROMPT = "Once upon a time"


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "async"])
def llm(request: pytest.FixtureRequest, text_model: Path) -> Iterator[LLM]:
    with LLM(
        text_model, max_model_len=200, block_size=16, dtype="float32", device=DEVICE, async_scheduling=request.param
    ) as engine:
        yield engine


@pytest.fixture(autouse=True)
def nothing_leaks(llm: LLM) -> Iterator[None]:
    """After every test all blocks and slots are free and accounted for."""
    yield
    llm.check()
    stats = llm.stats()
    assert (stats.num_running, stats.num_waiting, stats.used_blocks) == (0, 0, 0)


def sampled(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 40, "seed": 3, "ignore_eos": True, **changes})


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    output = llm.generate(PROMPT, sampled())[0]
    assert output.prompt == PROMPT and len(output.prompt_token_ids) == len(PROMPT)
    assert len(output.token_ids) == 40 and output.finish_reason == "length"
    assert output.text == llm.tokenizer.decode(output.token_ids)


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    batch = [PROMPT[:length] for length in (16, 1, 9)]
    outputs = llm.generate(batch, [sampled(max_tokens=n) for n in (3, 30, 12)])
    assert [output.prompt for output in outputs] == batch
    assert [len(output.token_ids) for output in outputs] == [3, 30, 12]


def test_stream_pieces_join_to_the_text(llm: LLM) -> None:
    pieces = list(llm.stream(PROMPT, sampled()))
    whole = llm.generate(PROMPT, sampled())[0]
    assert "".join(piece.text for piece in pieces) == whole.text
    assert sum(piece.num_tokens for piece in pieces) == 40


def test_a_closed_stream_frees_everything(llm: LLM) -> None:
    stream = llm.stream(PROMPT, sampled())
    next(stream)
    stream.close()
    assert llm.stats().num_running == 0


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens_ends_the_text_before_it(llm: LLM, include: bool) -> None:
    """The stop string is cut out of the unstopped text, so where it must end is known."""
    free = llm.generate(PROMPT, sampled())[0].text
    stop = free[10:14]
    first = free.index(stop)
    output = llm.generate(PROMPT, sampled(stop=[stop], include_stop_str_in_output=include))[0]
    assert output.text == free[: first + 4 if include else first]
    assert output.finish_reason == "stop"
    assert output.outputs[0].stop_reason == stop
    assert len(output.token_ids) < 40


def test_a_stop_string_does_not_count_before_min_tokens(llm: LLM) -> None:
    free = llm.generate(PROMPT, sampled(min_tokens=20))[0].text
    stop = free[5]
    output = llm.generate(PROMPT, sampled(stop=[stop], min_tokens=20))[0]
    assert len(output.token_ids) > 20
    assert output.text.startswith(free[:15])


def test_stop_token_ids(llm: LLM) -> None:
    free = llm.generate(PROMPT, sampled())[0].token_ids
    stop = free[12]
    place = free.index(stop)
    output = llm.generate(PROMPT, sampled(stop_token_ids=[stop]))[0]
    assert output.token_ids == free[: place + 1]
    assert (output.finish_reason, output.outputs[0].stop_reason) == ("stop", stop)
    assert output.text == llm.tokenizer.decode(free[:place])


def test_end_of_sequence_and_ignore_eos(llm: LLM) -> None:
    forced = {END: 100.0}
    ended = llm.generate(PROMPT, sampled(logit_bias=forced, ignore_eos=False))[0]
    assert (ended.token_ids, ended.text, ended.finish_reason) == ([END], "", "stop")
    assert ended.outputs[0].stop_reason is None
    later = llm.generate(PROMPT, sampled(logit_bias=forced, ignore_eos=False, min_tokens=5))[0]
    assert len(later.token_ids) == 5 + 1 and later.token_ids[-1] == END and END not in later.token_ids[:-1]
    ignored = llm.generate(PROMPT, sampled(logit_bias=forced))[0]
    assert ignored.token_ids == [END] * 40


def test_max_model_len_ends_a_sequence(llm: LLM) -> None:
    output = llm.generate(PROMPT, sampled(max_tokens=None))[0]
    assert len(output.prompt_token_ids) + len(output.token_ids) == 200
    assert output.finish_reason == "length"


def test_logprobs_are_those_of_the_raw_logits(llm: LLM, text_model: Path) -> None:
    """transformers gives the log-softmax at every position of prompt and output."""
    params = sampled(temperature=0.7, top_k=5, repetition_penalty=1.2, logprobs=3, prompt_logprobs=2)
    output = llm.generate(PROMPT, params)[0]
    ids = output.prompt_token_ids + output.token_ids
    oracle = AutoModelForCausalLM.from_pretrained(text_model, dtype=torch.float32)
    with torch.no_grad():
        want = oracle(torch.tensor([ids])).logits[0].log_softmax(-1)
    assert output.prompt_logprobs is not None and output.logprobs is not None
    got = output.prompt_logprobs + output.logprobs
    assert [entry.token_id for entry in got] == ids[1:]
    for place, entry in enumerate(got):
        row = want[place]
        assert entry.logprob == pytest.approx(float(row[entry.token_id]), abs=1e-4)
        assert entry.rank == int((row > row[entry.token_id]).sum()) + 1
        top = row.topk(2 if place < len(PROMPT) - 1 else 3)
        assert [token for token, _ in entry.top] == top.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)


def test_prompt_logprobs_are_whole_after_a_prefix_hit(llm: LLM) -> None:
    llm.generate(PROMPT * 3, sampled())
    output = llm.generate(PROMPT * 3, sampled(prompt_logprobs=0))[0]
    assert output.prompt_logprobs is not None and len(output.prompt_logprobs) == len(PROMPT) * 3 - 1
    assert output.num_cached_tokens == 0


def test_cache_salt_keeps_prefixes_apart(llm: LLM) -> None:
    prompt = "the same long prompt for two tenants of one engine"
    assert llm.generate(prompt, sampled(), cache_salt="a")[0].num_cached_tokens == 0
    assert llm.generate(prompt, sampled(), cache_salt="b")[0].num_cached_tokens == 0
    assert llm.generate(prompt, sampled(), cache_salt="a")[0].num_cached_tokens == (len(prompt) - 1) // 16 * 16


def test_chat_renders_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    output = llm.chat(messages, sampled(max_tokens=4))[0]
    assert output.prompt_token_ids == llm.tokenizer.encode(
        "<start>user: hi<end><start>assistant: ", add_special_tokens=False
    )
    assert [o.prompt_token_ids for o in llm.chat([messages, messages], sampled(max_tokens=1))] == [
        output.prompt_token_ids
    ] * 2


def test_bad_words_never_appear(llm: LLM) -> None:
    free = llm.generate(PROMPT, sampled(max_tokens=150))[0].text
    pair = next(free[i : i + 2] for i in range(20, 100) if free[i : i + 2].isascii() and free[i : i + 2].strip() != "")
    assert pair not in llm.generate(PROMPT, sampled(max_tokens=150, bad_words=[pair]))[0].text


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def test_json_schema_outputs_parse_and_fit(llm: LLM) -> None:
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))
    params = [
        SamplingParams(max_tokens=170, seed=seed, grammar=grammar, bad_words_token_ids=[[10, 10]]) for seed in range(16)
    ]
    outputs = llm.generate([PROMPT] * 16, params)
    finished = [output for output in outputs if output.finish_reason == "stop"]
    assert len(finished) >= 12
    for output in finished:
        value = json.loads(output.text)
        assert set(value) == {"name", "age", "tags"}
        assert isinstance(value["age"], int) and 0 <= value["age"] <= 150
        assert len(value["tags"]) <= 3 and set(value["tags"]) <= {"a", "b"}


def test_regex_and_choice_in_one_batch_with_free_text(llm: LLM) -> None:
    regex = Grammar(kind=GrammarKind.REGEX, source=r"[a-c]{3}-\d{2,4}")
    choice = Grammar(kind=GrammarKind.CHOICE, source='["yes", "no", "maybe"]')
    grammars = [regex, choice, None] * 4
    params = [SamplingParams(max_tokens=40, seed=seed, grammar=grammar) for seed, grammar in enumerate(grammars)]
    outputs = llm.generate([PROMPT] * len(params), params)
    for output, grammar in zip(outputs, grammars, strict=True):
        if grammar is regex:
            assert re.fullmatch(r"[a-c]{3}-\d{2,4}", output.text)
        elif grammar is choice:
            assert output.text in {"yes", "no", "maybe"}
    free = [output.token_ids for output in outputs[2::3]]
    alone = [llm.generate(PROMPT, params[i])[0].token_ids for i in (2, 5, 8, 11)]
    assert free == alone


def test_a_grammar_that_no_token_can_continue_ends_in_an_error(llm: LLM) -> None:
    """The schema demands a raw tab inside a JSON string, which JSON forbids: after `"a` nothing is allowed."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps({"type": "string", "pattern": "^a\tb$"}))
    stuck, free = llm.generate([PROMPT] * 2, [SamplingParams(grammar=grammar, seed=1), sampled()])
    assert (stuck.text, stuck.finish_reason) == ('"a', "error")
    assert free.finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([], {}, "prompt"),
        ([1] * 200, {}, "prompt"),
        ([VOCAB], {}, "prompt"),
        ("x", {"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
        ("x", {"grammar": Grammar(kind=GrammarKind.JSON_SCHEMA, source="{")}, "grammar"),
        ("x", {"bad_words": ["  "]}, "bad_words"),
    ],
)
def test_refused_requests_leave_nothing_behind(llm: LLM, prompt: Any, params: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate([PROMPT, prompt], SamplingParams(**params))
    assert caught.value.param == param
    assert "\n" not in str(caught.value)
    assert llm.generate(PROMPT, sampled())[0].finish_reason == "length"


def test_options_that_cannot_work_are_refused(text_model: Path, tmp_path: Path) -> None:
    for options, words in [
        ({"max_model_len": 10_000}, "256"),
        ({"max_model_len": 200, "kv_cache_tokens": 100}, "less than max_model_len=200"),
        ({"dtype": "int3"}, "dtype must be one of"),
        ({"device": "tpu"}, "device must be"),
        ({"device": "cpu:0"}, "device must be"),
        ({"max_model_len": "5"}, "max_model_len must be an integer"),
        ({"async_scheduling": "no"}, "async_scheduling must be true or false"),
        ({"block_size": 0}, "block_size must be an integer from 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be an integer from 1"),
        ({"load_format": "gguf"}, "gguf"),
    ]:
        with pytest.raises((ConfigError, ModelError), match=words):
            LLM(text_model, **{"device": DEVICE, **options})
    with pytest.raises(ModelError, match=r"config\.json"):
        LLM(tmp_path)


def test_streams_and_calls_interleave(llm: LLM) -> None:
    """Two streams and a generate in between give what each gives alone."""
    first, second, third = (llm.generate(text, sampled())[0].text for text in ("one", "two", "three"))
    a, b = llm.stream("one", sampled()), llm.stream("two", sampled())
    got_a, got_b = [next(a).text, next(a).text], [next(b).text]
    assert llm.generate("three", sampled())[0].text == third
    for piece in b:
        got_b.append(piece.text)
    got_a += [piece.text for piece in a]
    assert ("".join(got_a), "".join(got_b)) == (first, second)


def test_a_stream_closed_while_another_is_open(llm: LLM) -> None:
    whole = llm.generate("two", sampled())[0].text
    a, b = llm.stream("one", sampled()), llm.stream("two", sampled())
    got = [next(a) and next(b).text]
    a.close()
    assert "".join(got + [piece.text for piece in b]) == whole


def test_stream_refuses_at_once(llm: LLM) -> None:
    with pytest.raises(RequestError, match="n must be 1"):
        llm.stream(PROMPT, sampled(n=2))
    with pytest.raises(RequestError, match="empty"):
        llm.stream([], sampled())


def test_arrays_of_token_ids_are_prompts(llm: LLM) -> None:
    want = llm.generate([[5, 6, 7]], sampled())[0].token_ids
    for prompt in ([5, 6, 7], (5, 6, 7), np.array([5, 6, 7]), torch.tensor([[5, 6, 7]]), [[np.int64(5), 6, 7]]):
        assert llm.generate(prompt, sampled())[0].token_ids == want
    assert llm.generate([], sampled()) == []


@pytest.mark.parametrize("prompt", [[[1.5, 2.0]], [["1", "2"]], [[True, False]], [1, "a"], None, {"a": 1}, b"ab", 5])
def test_what_is_no_prompt_is_refused(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError, match="text or a list of token ids"):
        llm.generate(prompt, sampled())


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [None], 5])
def test_what_is_no_params_is_refused(llm: LLM, params: Any) -> None:
    with pytest.raises(RequestError, match="SamplingParams"):
        llm.generate([PROMPT], params)


def test_use_after_shutdown_is_an_error(text_model: Path) -> None:
    for async_scheduling in (False, True):
        engine = LLM(text_model, max_model_len=64, device=DEVICE, async_scheduling=async_scheduling)
        stream = engine.stream(PROMPT, sampled())
        next(stream)
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            list(stream)
        with pytest.raises(EngineDeadError, match="shut down"):
            engine.generate(PROMPT, sampled())


def test_stop_strings_need_a_tokenizer(tmp_path: Path) -> None:
    save_oracle(tmp_path, LlamaConfig(**TINY))
    with LLM(tmp_path, device=DEVICE) as engine:
        with pytest.raises(RequestError, match="stop_token_ids"):
            engine.generate([[1]], SamplingParams(stop=["a"]))
        with pytest.raises(RequestError, match="needs a tokenizer"):
            engine.generate("text")
