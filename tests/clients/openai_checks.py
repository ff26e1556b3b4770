"""openai-python against a server: `openai_checks.py URL KEYED_URL KEY MODEL`. Runs in the venv of openai.txt.

KEYED_URL asks for KEY, runs one sequence at a time and lets one wait.
"""

from __future__ import annotations

import json
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
from checks import expect, run_checks
from pydantic import BaseModel

URL, KEYED_URL, KEY, MODEL = sys.argv[1:]
client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
keyed = openai.OpenAI(base_url=f"{KEYED_URL}/v1", api_key=KEY, max_retries=0, timeout=120)
HI: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
                "required": ["city", "unit"],
                "additionalProperties": False,
            },
        },
    }
]


class Answer(BaseModel):
    """What the structured-output checks ask for."""

    capital: Literal["Paris", "London", "Rome"]
    is_large: bool


def models() -> str:
    names = [model.id for model in client.models.list()]
    expect(names == [MODEL], names)
    expect(client.models.retrieve(MODEL).id == MODEL)
    return ", ".join(names)


def chat() -> str:
    answer = client.chat.completions.create(model=MODEL, messages=HI, max_tokens=24, temperature=0)
    (choice,) = answer.choices
    expect(answer.id.startswith("chatcmpl-") and answer.object == "chat.completion" and answer.model == MODEL)
    expect(choice.message.role == "assistant" and choice.finish_reason in ("stop", "length"), choice)
    expect("Paris" in (choice.message.content or ""), choice.message.content)
    usage = answer.usage
    expect(usage and 0 < usage.completion_tokens <= 24, usage)
    expect(usage and usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    parts: Any = [{"role": "user", "content": [{"type": "text", "text": HI[0]["content"]}]}]
    same = client.chat.completions.create(model=MODEL, messages=parts, max_completion_tokens=24, temperature=0)
    expect(same.choices[0].message.content == choice.message.content, "content as parts gives another answer")
    return repr(choice.message.content)


def chat_stream() -> str:
    body: Any = {"model": MODEL, "messages": HI, "max_tokens": 24, "temperature": 0}
    whole = client.chat.completions.create(**body).choices[0]
    chunks = list(client.chat.completions.create(**body, stream=True))
    roles = [chunk.choices[0].delta.role for chunk in chunks]
    ends = [chunk.choices[0].finish_reason for chunk in chunks]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    expect(roles[0] == "assistant" and set(roles[1:]) == {None}, roles)
    expect(set(ends[:-1]) == {None} and ends[-1] == whole.finish_reason, ends)
    expect(text == whole.message.content, text)
    expect(len({chunk.id for chunk in chunks}) == 1, "ids differ")
    with client.chat.completions.stream(**body) as stream:
        final = stream.get_final_completion()
    expect(final.choices[0].message.content == text, final)
    return f"{len(chunks)} chunks"


def usage_chunk() -> str:
    body: Any = {"model": MODEL, "max_tokens": 5, "temperature": 0, "stream": True}
    body["extra_body"] = {"ignore_eos": True}
    for create, prompt in (
        (client.chat.completions.create, {"messages": HI}),
        (client.completions.create, {"prompt": PROMPT}),
    ):
        chunks: Any = list(create(**prompt, **body, stream_options={"include_usage": True}))
        expect(chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 5, chunks[-1])
        expect(all(chunk.choices and chunk.usage is None for chunk in chunks[:-1]), "usage before the end")
    return f"{chunks[-1].usage.prompt_tokens} + {chunks[-1].usage.completion_tokens} tokens"


def completions() -> str:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=5, temperature=0)
    expect(answer.id.startswith("cmpl-") and answer.object == "text_completion", answer)
    expect(answer.choices[0].text.startswith(" Paris"), answer.choices[0].text)
    ids = client.post("/../tokenize", cast_to=object, body={"prompt": PROMPT})
    token_ids: Any = ids["tokens"]  # type: ignore[index]
    batch = client.completions.create(model=MODEL, prompt=[token_ids, token_ids], max_tokens=5, temperature=0)
    expect([choice.index for choice in batch.choices] == [0, 1], batch.choices)
    expect({choice.text for choice in batch.choices} == {answer.choices[0].text}, batch.choices)
    return repr(answer.choices[0].text)


def completions_stream() -> str:
    body: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**body).choices[0]
    chunks = list(client.completions.create(**body, stream=True))
    expect("".join(chunk.choices[0].text for chunk in chunks) == whole.text, chunks)
    expect(chunks[-1].choices[0].finish_reason == whole.finish_reason, chunks[-1])
    return f"{len(chunks)} chunks"


def chat_logprobs() -> str:
    body: Any = {"model": MODEL, "messages": HI, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    choice = client.chat.completions.create(**body).choices[0]
    entries = (choice.logprobs and choice.logprobs.content) or []
    expect(len(entries) == 6, entries)
    for entry in entries:
        tops = [top.logprob for top in entry.top_logprobs]
        expect(len(tops) == 3 and tops == sorted(tops, reverse=True) and entry.logprob == tops[0] <= 0, entry)
    joined = b"".join(bytes(entry.bytes or []) for entry in entries).decode()
    expect(joined == choice.message.content, joined)
    streamed = [
        entry.logprob
        for chunk in client.chat.completions.create(**body, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    expect(
        len(streamed) == 6
        and all(math.isclose(a, b.logprob, abs_tol=1e-3) for a, b in zip(streamed, entries, strict=True))
    )
    return f"first {entries[0].token!r} {entries[0].logprob:.3f}"


def completions_logprobs() -> str:
    choice = client.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=3, temperature=0, logprobs=2, echo=True
    ).choices[0]
    found = choice.logprobs
    expect(found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset, choice)
    tokens, logprobs, tops, offsets = found.tokens, found.token_logprobs, found.top_logprobs, found.text_offset
    expect(len(tokens) == len(logprobs) == len(tops) == len(offsets), found)
    expect(logprobs[0] is None and tops[0] is None and all(value <= 0 for value in logprobs[1:]), found)
    expect(choice.text.startswith(PROMPT) and "".join(tokens) == choice.text, tokens)
    expect(all(choice.text[at:].startswith(token) for at, token in zip(offsets, tokens, strict=True)), offsets)
    return f"{len(tokens)} tokens with the prompt"


def tools_required() -> str:
    body: Any = {"model": MODEL, "messages": HI, "tools": TOOLS, "tool_choice": "required", "max_tokens": 120}
    body |= {"parallel_tool_calls": False, "temperature": 0}
    choice = client.chat.completions.create(**body).choices[0]
    expect(choice.finish_reason == "tool_calls", choice)
    (call,) = choice.message.tool_calls or []
    expect(call.type == "function" and call.function.name == "get_weather" and call.id, call)
    arguments = json.loads(call.function.arguments)
    expect(set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F"), arguments)
    chunks = list(client.chat.completions.create(**body, stream=True))
    parts = [part for chunk in chunks for part in chunk.choices[0].delta.tool_calls or []]
    expect(parts[0].id and parts[0].function and parts[0].function.name == "get_weather", parts[0])
    joined = "".join((part.function and part.function.arguments) or "" for part in parts)
    expect(json.loads(joined) == arguments and chunks[-1].choices[0].finish_reason == "tool_calls", joined)
    expect(len(parts) > 2, "the arguments came in one piece")
    return f"{call.function.arguments}, {len(parts)} pieces when streamed"


def tools_named() -> str:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    choice = client.chat.completions.create(
        model=MODEL, messages=HI, tools=TOOLS, tool_choice=named, max_tokens=120, temperature=0
    ).choices[0]
    (call,) = choice.message.tool_calls or []
    expect(call.type == "function" and call.function.name == "get_weather", call)
    return str(json.loads(call.function.arguments))


def tools_auto() -> str:
    """A 135M model rarely calls a tool by itself, so a grammar makes it write a call in its own format."""
    called = r'<tool_call>\[\{"name": "get_weather", "arguments": \{"city": "Paris", "unit": "C"\}\}\]</tool_call>'
    body: Any = {"model": MODEL, "messages": HI, "tools": TOOLS, "tool_choice": "auto", "max_tokens": 120}
    free = client.chat.completions.create(**body, temperature=0).choices[0]
    expect(bool(free.message.tool_calls) == (free.finish_reason == "tool_calls"), free)
    body["extra_body"] = {"structured_outputs": {"regex": called}}
    choice = client.chat.completions.create(**body).choices[0]
    (call,) = choice.message.tool_calls or []
    expect(choice.finish_reason == "tool_calls" and not choice.message.content, choice)
    expect(call.type == "function" and json.loads(call.function.arguments) == {"city": "Paris", "unit": "C"}, call)
    with client.chat.completions.stream(**body) as stream:
        final: Any = stream.get_final_completion().choices[0]
    expect(final.message.tool_calls[0].function.arguments == call.function.arguments, final)
    expect(final.finish_reason == "tool_calls" and not final.message.content, final)
    again: Any = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
        {"role": "tool", "tool_call_id": call.id, "content": "21 C"},
    ]
    after = client.chat.completions.create(model=MODEL, messages=again, tools=TOOLS, max_tokens=8).choices[0]
    return f"{call.function.name}, then {after.message.content!r}; free: {free.finish_reason}"


def json_schema() -> str:
    schema = {"name": "answer", "schema": Answer.model_json_schema() | {"additionalProperties": False}, "strict": True}
    chosen: Any = {"type": "json_schema", "json_schema": schema}
    body: Any = {"model": MODEL, "messages": HI, "max_tokens": 120, "temperature": 0}
    text = client.chat.completions.create(**body, response_format=chosen).choices[0].message.content
    Answer.model_validate_json(text or "")
    parsed = client.chat.completions.parse(**body, response_format=Answer).choices[0].message.parsed
    expect(isinstance(parsed, Answer), parsed)
    with client.chat.completions.stream(**body, response_format=Answer) as stream:
        expect(stream.get_final_completion().choices[0].message.parsed == parsed)
    free = client.chat.completions.create(**body, response_format={"type": "json_object"}).choices[0]
    if free.finish_reason == "stop":
        expect(isinstance(json.loads(free.message.content or ""), dict), free)
    return str(parsed)


def many() -> str:
    answer = client.chat.completions.create(model=MODEL, messages=HI, n=3, max_tokens=8, temperature=1.5, seed=1)
    expect(sorted(choice.index for choice in answer.choices) == [0, 1, 2], answer.choices)
    expect(len({choice.message.content for choice in answer.choices}) > 1, "all choices are the same")
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(
        model=MODEL, prompt=PROMPT, n=2, max_tokens=8, temperature=1.5, seed=1, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    expect(all(texts.values()) and len(set(texts.values())) == 2, texts)
    return f"{len(answer.choices)} choices"


def stop() -> str:
    body: Any = {"model": MODEL, "prompt": "Count: one, two, three,", "max_tokens": 40, "temperature": 0}
    free = client.completions.create(**body).choices[0].text
    at = free.split()[3].strip(",.")
    cut = client.completions.create(**body, stop=[at, "\n\n\n"]).choices[0]
    expect(cut.text == free[: free.index(at)] and cut.finish_reason == "stop", (free, cut))
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**body, stop=at, stream=True))
    expect(streamed == cut.text, streamed)
    return f"{cut.text!r} before {at!r}"


def seed() -> str:
    body: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 16, "temperature": 1.2}
    first, second, other = (client.completions.create(**body, seed=s).choices[0].text for s in (7, 7, 8))
    expect(first == second and first != other, (first, second, other))
    return repr(first[:30])


def _error(kind: type[openai.APIStatusError], ask: Any, **fields: Any) -> Any:
    try:
        ask(**fields)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def not_found() -> str:
    for ask, prompt in (
        (client.chat.completions.create, {"messages": HI}),
        (client.completions.create, {"prompt": "x"}),
    ):
        error = _error(openai.NotFoundError, ask, model="nobody", **prompt)
        expect((error.status_code, error.param, error.type) == (404, "model", "NotFoundError"), error)
    _error(openai.NotFoundError, client.models.retrieve, model="nobody")
    return str(error.body["message"])


def bad_request() -> str:
    create = client.chat.completions.create
    cases: list[tuple[str, dict[str, Any]]] = [
        ("temperature", {"temperature": -1}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 99}),
        ("messages", {"messages": [{"role": "user", "content": "word " * 9000}]}),
    ]
    for param, fields in cases:
        error = _error(openai.BadRequestError, create, **({"model": MODEL, "messages": HI, "stream": True} | fields))
        expect(error.param == param and error.type == "BadRequestError", (error.param, error.type))
        expect(str(error.code) == "400" and error.body["message"], error.body)
        expect(error.request_id == error.response.headers["x-request-id"] != "", "no request id")
    return ", ".join(param for param, _ in cases)


def authentication() -> str:
    stranger = openai.OpenAI(base_url=f"{KEYED_URL}/v1", api_key="wrong", max_retries=0, timeout=30)
    error = _error(openai.AuthenticationError, stranger.models.list)
    expect(error.type == "AuthenticationError" and str(error.code) == "401", error.body)
    _error(openai.AuthenticationError, stranger.completions.create, model=MODEL, prompt="x")
    expect([model.id for model in keyed.models.list()] == [MODEL])
    return "the right key is taken"


def rate_limit() -> str:
    """Six at once where one runs and one waits: some are refused; a client that repeats gets through."""

    def ask(who: openai.OpenAI) -> str:
        try:
            fields: Any = {"model": MODEL, "prompt": PROMPT, "max_tokens": 40, "extra_body": {"ignore_eos": True}}
            return who.completions.create(**fields).choices[0].finish_reason
        except openai.RateLimitError as error:
            expect(error.type == "RateLimitError" and int(error.response.headers["retry-after"]) > 0, error.body)
            return "refused"

    with ThreadPoolExecutor(6) as pool:
        once = list(pool.map(ask, [keyed] * 6))
        patient = list(pool.map(ask, [keyed.with_options(max_retries=20)] * 6))
    expect(set(once) == {"refused", "length"}, once)
    expect(set(patient) == {"length"}, patient)
    return f"{once.count('refused')} of 6 refused; with retries {patient.count('length')} of 6 done"


if __name__ == "__main__":
    run_checks(
        {
            "models": models,
            "chat": chat,
            "chat, streamed": chat_stream,
            "completions": completions,
            "completions, streamed": completions_stream,
            "usage chunk": usage_chunk,
            "chat logprobs": chat_logprobs,
            "completions logprobs, echo": completions_logprobs,
            "tools required, streamed": tools_required,
            "tools named": tools_named,
            "tools auto, streamed": tools_auto,
            "json_schema, parse": json_schema,
            "n": many,
            "stop": stop,
            "seed": seed,
            "NotFoundError": not_found,
            "BadRequestError": bad_request,
            "AuthenticationError": authentication,
            "RateLimitError, retries": rate_limit,
        }
    )
