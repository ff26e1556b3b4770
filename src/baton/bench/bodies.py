"""The JSON of requests. Encoded before a run, so that sending costs nothing but sending."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from baton.bench.asks import Ask
from baton.bench.kinds import Endpoint
from baton.core.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What all requests of a run have in common.

    Attributes:
        ignore_eos: so that the output has the length that was asked for.
        extra: further fields of the body; they win.
    """

    endpoint: Endpoint
    model: str
    ignore_eos: bool = True
    temperature: float = 0.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def body(self, ask: Ask) -> bytes:
        """Of one request, streamed, with its usage at the end.

        Raises:
            ConfigError: the prompt does not fit the endpoint.
        """
        fields = {
            "model": self.model,
            **self._prompt(ask),
            "max_tokens": ask.output_tokens,
            "temperature": self.temperature,
            "ignore_eos": self.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.extra,
        }
        return msgspec.json.encode(fields)

    def _prompt(self, ask: Ask) -> dict[str, Any]:
        prompt = ask.prompt
        conversation = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
        if self.endpoint is Endpoint.COMPLETIONS:
            if conversation:
                raise ConfigError("conversations go to --endpoint chat")
            return {"prompt": prompt}
        if isinstance(prompt, str):
            return {"messages": [{"role": "user", "content": prompt}]}
        if not conversation:
            raise ConfigError("token ids go to --endpoint completions; chats need --prompts or --sharegpt")
        return {"messages": prompt}
