"""langchain-openai against a server: `langchain_checks.py URL MODEL`. Runs in the venv of langchain.txt."""

from __future__ import annotations

import sys
from typing import Any, Literal

from checks import expect, run_checks
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

URL, MODEL = sys.argv[1:]
QUESTION = "What is the capital of France?"


class Capital(BaseModel):
    """The capital of a country."""

    name: Literal["Paris", "London", "Rome"] = Field(description="name of the city")
    has_river: bool


@tool
def get_weather(city: Literal["Paris", "London"], days: Literal[1, 2]) -> str:
    """The weather of a city."""
    return f"{city}, {days}"


def _chat(**options: Any) -> ChatOpenAI:
    given: Any = {"max_completion_tokens": 100, "temperature": 0, "timeout": 120, "max_retries": 0} | options
    return ChatOpenAI(base_url=f"{URL}/v1", api_key="none", model=MODEL, **given)


def invoke() -> str:
    answer = _chat(max_completion_tokens=24).invoke(QUESTION)
    usage = answer.usage_metadata
    expect("Paris" in answer.text, answer)
    expect(usage and usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"], usage)
    expect(answer.response_metadata["model_name"] == MODEL, answer.response_metadata)
    return repr(answer.text)


def stream() -> str:
    model = _chat(max_completion_tokens=24, stream_usage=True)
    chunks = list(model.stream(QUESTION))
    whole = model.invoke(QUESTION)
    expect("".join(chunk.text for chunk in chunks) == whole.text, chunks)
    total: Any = sum((chunk.usage_metadata or {}).get("output_tokens", 0) for chunk in chunks)
    expect(whole.usage_metadata and total == whole.usage_metadata["output_tokens"], total)
    return f"{len(chunks)} chunks"


def structured() -> str:
    found = []
    for method in ("json_schema", "function_calling", "json_mode"):
        asked = QUESTION + (' Answer as JSON: {"name": "Paris", "has_river": true}' if method == "json_mode" else "")
        reply: Any = _chat().with_structured_output(Capital, method=method, include_raw=True).invoke(asked)
        if method == "json_mode":  # holds the model to JSON, not to the schema
            expect(reply["raw"].text.lstrip().startswith("{"), reply)
        else:
            expect(isinstance(reply["parsed"], Capital), reply)
            found.append(f"{method}: {reply['parsed'].name}")
    return ", ".join(found)


def bind_tools() -> str:
    for choice in ("required", "get_weather"):
        model = _chat().bind_tools([get_weather], tool_choice=choice, parallel_tool_calls=False)
        (call,) = model.invoke("Weather in Paris?").tool_calls
        expect(call["name"] == "get_weather" and call["args"]["city"] in ("Paris", "London"), call)
        gathered: Any = None
        for chunk in model.stream("Weather in Paris?"):
            gathered = chunk if gathered is None else gathered + chunk
        expect([part["args"] for part in gathered.tool_calls] == [call["args"]], gathered)
        get_weather.invoke(call)
    _chat(max_completion_tokens=8).bind_tools([get_weather]).invoke("Hello")
    return str(call["args"])


def completions() -> str:
    model: Any = OpenAI(base_url=f"{URL}/v1", api_key="none", model=MODEL, temperature=0, max_tokens=6, max_retries=0)
    text = model.invoke("The capital of France is")
    expect("Paris" in text, text)
    expect("".join(model.stream("The capital of France is")) == text)
    batch = model.generate(["The capital of France is", "The capital of Italy is"])
    expect(batch.generations[0][0].text == text and "Rome" in batch.generations[1][0].text, batch)
    return repr(text)


if __name__ == "__main__":
    run_checks(
        {
            "ChatOpenAI.invoke": invoke,
            "ChatOpenAI.stream": stream,
            "with_structured_output": structured,
            "bind_tools": bind_tools,
            "OpenAI completions, batch": completions,
        }
    )
