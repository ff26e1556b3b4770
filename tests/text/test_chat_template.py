"""Chat templates: what transformers renders is what we render, inside a sandbox."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from baton.core.errors import RequestError
from baton.text.chat_template import render
from baton.text.tokenizer import Tokenizer

MESSAGES = [
    {"role": "system", "content": "Be brief & <exact>."},
    {"role": "user", "content": "Wie geht's? 你好"},
    {"role": "assistant", "content": "Gut."},
    {"role": "user", "content": "  spaces kept  "},
]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "a < b & 'c' é", "parameters": {"x": 1}}}]

# Each uses features that published templates need.
TEMPLATES = {
    "whitespace control": (
        "{{ bos_token }}\n"
        "{% for m in messages %}\n"
        "    {% if loop.first %}first{% endif %}\n"
        "    {%- set text = m['content'] | trim %}\n"
        "<{{ m.role }}>{{ text }}{{ '\\n' }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<assistant>{% endif %}\n"
    ),
    "loop controls and namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'assistant' %}{% continue %}{% endif %}"
        "{% set ns.n = ns.n + 1 %}{{ ns.n }}:{{ m.content }};{% if ns.n == 2 %}{% break %}{% endif %}{% endfor %}"
    ),
    "tools as json": (
        "{% if tools %}{{ tools | tojson }}|{% for t in tools %}{{ t.function | tojson(indent=2) }}{% endfor %}"
        "{% else %}no tools{% endif %}"
    ),
    "generation block": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "own variable": "{{ 'thinking' if enable_thinking is defined and enable_thinking else 'plain' }}",
    "slices and methods": (
        "{% for m in messages[1:] %}{{ m.content.strip().split('?')[0] }}{{ m.get('name', '-') }}{% endfor %}"
        "{{ messages[::-1][0].role }}{{ raise_exception('never') if messages | length == 0 }}"
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("prompt", [True, False])
def test_renders_as_transformers(name: str, tools: list[dict[str, Any]] | None, prompt: bool) -> None:
    variables = {"bos_token": "<s>", "enable_thinking": True}
    (expected,), _ = render_jinja_template(
        [MESSAGES], tools=tools, chat_template=TEMPLATES[name], add_generation_prompt=prompt, **variables
    )
    assert expected
    ours = render(TEMPLATES[name], MESSAGES, tools=tools, add_generation_prompt=prompt, variables=variables)
    assert ours == expected


def test_text_parts_join_by_newline() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"


def test_absent_content_is_empty_text() -> None:
    messages = [{"role": "assistant", "content": None}, {"role": "user"}]
    assert render("{% for m in messages %}[{{ m.content + '' }}]{% endfor %}", messages) == "[][]"


def test_tool_arguments_become_an_object() -> None:
    """OpenAI clients send arguments as JSON text; a template applies tojson once."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1, 2]}'}}
    template = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert render(template, [{"role": "assistant", "tool_calls": [call]}]) == '{"x": [1, 2]}'


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"content": "x"}], "messages.0. must be an object with a role"),
        (["text"], "must be an object"),
        ([{"role": "user", "content": 3}], "content must be text"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "part of type image_url"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}], "no JSON"),
    ],
)
def test_malformed_messages_are_refused(messages: list[Any], reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        render("{{ messages }}", messages)
    assert caught.value.param == "messages"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "refuses these messages: roles must alternate"),
        ("{{ messages[7].content }}", "refuses these messages"),
        ("{{ messages[0].content + 1 }}", "fails on these messages"),
        ("{% if %}", "not valid Jinja"),
        ("{{ 1 / 0 }}", "fails on these messages"),
    ],
)
def test_failing_templates_are_request_errors(template: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        render(template, MESSAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_sandbox_holds(template: str) -> None:
    """No way to Python's internals, no change of what was passed, no endless range."""
    with pytest.raises(RequestError):
        render(template, MESSAGES)


def test_reserved_names_are_refused() -> None:
    with pytest.raises(RequestError, match="messages"):
        render("", MESSAGES, variables={"messages": []})


def test_date_is_there() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}", MESSAGES)) == len("2025-01-31")


def test_model_without_template(byte_level: Tokenizer) -> None:
    with pytest.raises(RequestError, match="no chat template"):
        byte_level.render_chat(MESSAGES)
    assert byte_level.render_chat(MESSAGES, chat_template="{{ eos_token }}{{ x }}", x=1) == "<|im_end|>1"


def test_tool_use_template_serves_calls_with_tools(byte_level: Tokenizer) -> None:
    both = Tokenizer(byte_level.backend, chat_templates={"default": "plain", "tool_use": "tools"})
    assert (both.render_chat(MESSAGES), both.render_chat(MESSAGES, tools=TOOLS)) == ("plain", "tools")
