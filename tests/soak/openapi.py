"""The API as an OpenAPI document for fuzzers, made from the structs that the server reads bodies with.

python -m tests.soak.openapi > openapi.json
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from baton.wire.openai.chat import ChatCompletion, ChatRequest
from baton.wire.openai.completions import Completion, CompletionRequest
from baton.wire.openai.errors import ErrorBody
from baton.wire.openai.text import (
    Detokenized,
    DetokenizeRequest,
    ModelCard,
    ModelList,
    Tokenized,
    TokenizeRequest,
)

_REF = "#/components/schemas/{name}"
_ASKED = {"CompletionRequest": "CompletionAsked", "ChatRequest": "ChatAsked"}
_POSTS = {
    "/v1/completions": (CompletionRequest, Completion),
    "/v1/chat/completions": (ChatRequest, ChatCompletion),
    "/tokenize": (TokenizeRequest, Tokenized),
    "/detokenize": (DetokenizeRequest, Detokenized),
}
_GETS: dict[str, type[msgspec.Struct] | None] = {
    "/v1/models": ModelList,
    "/v1/models/{id}": ModelCard,
    "/tokenizer_info": None,
    "/version": None,
    "/load": None,
    "/stats": None,
}
_STREAMS = ("/v1/completions", "/v1/chat/completions")


def _int(low: int, high: int) -> dict[str, Any]:
    return {"anyOf": [{"type": "integer", "minimum": low, "maximum": high}, {"type": "null"}]}


def _number(low: float, high: float) -> dict[str, Any]:
    return {"anyOf": [{"type": "number", "minimum": low, "maximum": high}, {"type": "null"}]}


_JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"enum": ["object", "string", "integer", "array", "boolean", "null"]},
        "properties": {"type": "object", "additionalProperties": {"enum": [{"type": "string"}, {"enum": [1, "a"]}]}},
        "required": {"type": "array", "items": {"type": "string"}},
        "items": {"enum": [{}, {"type": "integer"}]},
        "enum": {"type": "array", "minItems": 1},
        "minimum": {"type": "integer"},
        "maxLength": {"type": "integer", "minimum": 0, "maximum": 9},
        "pattern": {"type": "string"},
    },
}
_TEXT = {"type": "string"}
_FUNCTION = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-z]{1,8}$"},
        "description": _TEXT,
        "parameters": _JSON_SCHEMA,
    },
}
_TOOL = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {"type": {"const": "function"}, "function": _FUNCTION},
}
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"const": "text"}, "text": _TEXT},
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool", "developer"]},
        "content": {"anyOf": [_TEXT, {"type": "null"}, {"type": "array", "items": _PART}]},
        "tool_calls": {"type": "array", "items": {"type": "object"}},
        "tool_call_id": _TEXT,
    },
}
_RESPONSE_FORMAT = {
    "anyOf": [
        {"enum": [None, {"type": "text"}, {"type": "json_object"}]},
        {
            "type": "object",
            "required": ["type", "json_schema"],
            "properties": {
                "type": {"const": "json_schema"},
                "json_schema": {
                    "type": "object",
                    "required": ["name", "schema"],
                    "properties": {"name": _TEXT, "schema": _JSON_SCHEMA},
                },
            },
        },
    ]
}
_STRUCTURED = {
    "anyOf": [
        {"type": "null"},
        *(
            {"type": "object", "required": [name], "additionalProperties": False, "properties": {name: value}}
            for name, value in {
                "json": {"anyOf": [_JSON_SCHEMA, _TEXT]},
                "regex": {"enum": ["[ab]+", "(", "", "\\d{2}"]},
                "choice": {"type": "array", "items": _TEXT},
                "grammar": {"enum": ['root ::= "a"', "root ::=", "", 'root ::= root "a"']},
            }.items()
        ),
    ]
}
_TOOL_CHOICE = {
    "anyOf": [
        {"enum": [None, "none", "auto", "required"]},
        {"type": "object", "properties": {"type": {"const": "function"}, "function": _FUNCTION}},
    ]
}

# What makes a request worth running: small, and mostly in range (fuzzers leave it on purpose).
_NARROWER: dict[str, dict[str, Any]] = {
    "n": _int(1, 3),
    "best_of": _int(1, 3),
    "max_tokens": _int(0, 8),
    "max_completion_tokens": _int(1, 8),
    "min_tokens": _int(0, 8),
    "temperature": _number(0, 2),
    "top_p": _number(0.01, 1),
    "top_k": _int(-1, 300),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 2),
    "logprobs": _int(0, 20),
    "top_logprobs": _int(0, 20),
    "prompt_logprobs": _int(0, 20),
    "stream_interval": _int(1, 9),
    "truncate_prompt_tokens": _int(-1, 64),
    "messages": {"type": "array", "items": _MESSAGE},
    "tools": {"anyOf": [{"type": "null"}, {"type": "array", "items": _TOOL}]},
    "tool_choice": _TOOL_CHOICE,
    "response_format": _RESPONSE_FORMAT,
    "structured_outputs": _STRUCTURED,
}


_TOKEN = {"type": "integer", "minimum": 0, "maximum": 257}
_PROMPT = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": 40},
        {"type": "array", "minItems": 1, "maxItems": 30, "items": _TOKEN},
        {"type": "array", "minItems": 1, "maxItems": 3, "items": {"type": "string", "minLength": 1, "maxLength": 9}},
    ]
}
_SAID = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {"role": {"enum": ["system", "user", "assistant"]}, "content": {"type": "string", "maxLength": 20}},
}
_PLAIN = {"max_tokens": {"type": "integer", "minimum": 1, "maximum": 12}}

# Fields that go well together: each family is a kind of request that the server takes.
_FAMILIES: list[dict[str, Any]] = [
    {
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0.01, "maximum": 1},
        "top_k": {"type": "integer", "minimum": 1, "maximum": 300},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "seed": {"type": "integer", "minimum": -(1 << 63), "maximum": (1 << 63) - 1},
        "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "repetition_penalty": {"type": "number", "minimum": 0.01, "maximum": 2},
    },
    {
        "stream": {"const": True},
        "stream_options": {
            "enum": [None, {"include_usage": True}, {"include_usage": True, "continuous_usage_stats": True}]
        },
        "stream_interval": {"type": "integer", "minimum": 1, "maximum": 9},
        "n": {"type": "integer", "minimum": 1, "maximum": 3},
        "return_token_ids": {"type": "boolean"},
    },
    {
        "stop": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "maxItems": 4, "items": _TEXT}]},
        "stop_token_ids": {"type": "array", "items": _TOKEN},
        "include_stop_str_in_output": {"type": "boolean"},
        "ignore_eos": {"type": "boolean"},
        "skip_special_tokens": {"type": "boolean"},
        "bad_words": {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 5}},
        "logit_bias": {
            "type": "object",
            "additionalProperties": False,
            "patternProperties": {"^(0|[1-9][0-9])$": {"type": "number", "minimum": -100, "maximum": 100}},
        },
        "allowed_token_ids": {"type": "array", "minItems": 1, "items": _TOKEN},
        "stream": {"type": "boolean"},
    },
    {"response_format": _RESPONSE_FORMAT, "stream": {"type": "boolean"}, "n": {"enum": [1, 2]}},
    {"structured_outputs": _STRUCTURED, "stream": {"type": "boolean"}},
]
_COMPLETION_FAMILIES: list[dict[str, Any]] = [
    {
        "echo": {"type": "boolean"},
        "logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "prompt_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "return_tokens_as_token_ids": {"type": "boolean"},
    },
    {"echo": {"type": "boolean"}, "logprobs": {"enum": [0, 5]}, "stream": {"const": True}, "n": {"enum": [1, 2]}},
    {"best_of": {"enum": [2, 3]}, "n": {"enum": [1, 2]}, "logprobs": {"enum": [0, 1]}},
]
_CHAT_FAMILIES: list[dict[str, Any]] = [
    {
        "logprobs": {"const": True},
        "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
        "stream": {"type": "boolean"},
    },
    {
        "tools": {"type": "array", "minItems": 1, "maxItems": 2, "items": _TOOL},
        "tool_choice": {"enum": ["none", "auto", "required"]},
        "parallel_tool_calls": {"type": "boolean"},
        "stream": {"type": "boolean"},
    },
]


def _families(own: dict[str, Any], families: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "type": "object",
            "required": [*own, *_PLAIN],
            "additionalProperties": False,
            "properties": {**own, **_PLAIN, **family},
        }
        for family in families
    ]


def document(model: str) -> dict[str, Any]:
    """An OpenAPI 3.1 document.

    Args:
        model: the served name, so that most requests get past the check of `model`.
    """
    structs = [*(kind for pair in _POSTS.values() for kind in pair), *(kind for kind in _GETS.values() if kind)]
    _, schemas = msgspec.json.schema_components([*structs, ErrorBody], ref_template=_REF)
    narrower = {**_NARROWER, "model": {"enum": [model, None, "", "another"]}}
    for name in ("CompletionRequest", "ChatRequest", "TokenizeRequest", "DetokenizeRequest"):
        properties = schemas[name]["properties"]
        if name == "ChatRequest":  # there a switch, in completions a number
            narrower = {**narrower, "logprobs": properties["logprobs"]}
        properties.update({field: shape for field, shape in narrower.items() if field in properties})
    said = {"type": "array", "minItems": 1, "maxItems": 3, "items": _SAID}
    schemas["CompletionAsked"] = {
        "anyOf": [
            *_families({"prompt": _PROMPT}, [*_FAMILIES, *_COMPLETION_FAMILIES]),
            {"$ref": _REF.format(name="CompletionRequest")},
        ]
    }
    schemas["ChatAsked"] = {
        "anyOf": [
            *_families({"messages": said}, [*_FAMILIES, *_CHAT_FAMILIES]),
            {"$ref": _REF.format(name="ChatRequest")},
        ]
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Baton", "version": "1"},
        "paths": {
            **{path: {"post": _post(path, asked, answer)} for path, (asked, answer) in _POSTS.items()},
            **{path: {"get": _get(path, model, answer)} for path, answer in _GETS.items()},
        },
        "components": {"schemas": schemas},
    }


def _post(path: str, asked: type[msgspec.Struct], answer: type[msgspec.Struct]) -> dict[str, Any]:
    content = _json(answer)
    if path in _STREAMS:
        content["text/event-stream"] = {"schema": {}}
    return {
        "requestBody": {"required": True, "content": _content(_ASKED.get(asked.__name__, asked.__name__))},
        "responses": {"200": {"description": "answer", "content": content}, **_errors()},
    }


def _get(path: str, model: str, answer: type[msgspec.Struct] | None) -> dict[str, Any]:
    content = {"application/json": {"schema": {}}} if answer is None else _json(answer)
    operation: dict[str, Any] = {"responses": {"200": {"description": "answer", "content": content}, **_errors()}}
    if "{id}" in path:
        schema = {"anyOf": [{"const": model}, {"type": "string", "minLength": 1}]}
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": schema}]
    return operation


def _errors() -> dict[str, Any]:
    return {"4XX": {"description": "the caller's fault", "content": _json(ErrorBody)}}


def _json(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return _content(kind.__name__)


def _content(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REF.format(name=name)}}}


if __name__ == "__main__":
    json.dump(document(sys.argv[1] if len(sys.argv) > 1 else "MODEL"), sys.stdout, indent=1)
