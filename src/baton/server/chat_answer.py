"""POST /v1/chat/completions: what the client gets back, whole or in chunks."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.handoff import Ticket
from baton.server.asking import Asking
from baton.server.choice import Choice, Piece, choices_of
from baton.server.logprobs import chat_logprobs, prompt_logprobs, token_name
from baton.server.tools.choice import ToolUse
from baton.server.tools.deltas import ContentDelta, Delta, ToolCallDelta
from baton.server.tools.message import ParsedMessage, parse_message
from baton.server.tools.parser import ToolParser
from baton.server.usage import total_usage, usage_of
from baton.text.outputs import OutputCollector
from baton.wire.openai.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    FunctionCall,
    ToolCall,
    ToolCallChunk,
)
from baton.wire.openai.common import Usage

_encode = msgspec.json.Encoder().encode
_OPENING = ChatDelta(role="assistant", content="")


class ChatAnswer:
    """Builds the answer to one request.

    Args:
        ask: the request.
        tools: what it may call.
    """

    def __init__(self, ask: Asking[ChatRequest], tools: ToolUse) -> None:
        body = ask.body
        self._ask = ask
        self._tools = tools
        self._top = (body.top_logprobs or 0) if body.logprobs else None
        self._name = token_name(ask.server.token_texts, as_ids=bool(body.return_tokens_as_token_ids))
        self._ids = bool(body.return_token_ids)
        self._parsers: dict[int, ToolParser | None] = {}
        self._num_calls: dict[int, int] = {}
        self._collector: OutputCollector | None = None

    def whole(self, collector: OutputCollector, ticket: Ticket | None = None) -> ChatCompletion:
        """The answer in one piece. ticket: of a request that gives its KV away."""
        body, output = self._ask.body, collector.output
        shown_prompt = body.prompt_logprobs
        return ChatCompletion(
            id=self._ask.id,
            created=self._ask.created,
            model=self._ask.model,
            choices=[self._choice(choice, choice.take()) for choice in choices_of([collector])],
            usage=total_usage([collector]),
            prompt_token_ids=output.prompt_token_ids if self._ids else UNSET,
            prompt_logprobs=UNSET
            if shown_prompt is None
            else prompt_logprobs(output.prompt_logprobs or [], self._ask.server.token_texts, shown_prompt),
            kv_transfer_params=self._ask.ticket_params(ticket),
        )

    def chunks(self, choice: Choice, piece: Piece, ticket: Ticket | None = None) -> list[bytes]:
        """The chunks that show a piece: the role before all else, then what the parser makes of the text."""
        self._collector = choice.collector
        chunks = []
        if piece.first:
            chunks.append(self._chunk(choice, piece, ChatChunkChoice(index=choice.position, delta=_OPENING)))
        deltas = self._deltas(choice.position, piece)
        reason = piece.finish_reason
        if reason is not None:
            reason = self._tools.finish_reason(reason, self._num_calls.get(choice.position, 0))
        for place, delta in enumerate(deltas):
            last = place == len(deltas) - 1
            shown = ChatChunkChoice(
                index=choice.position,
                delta=delta,
                logprobs=self._logprobs(piece) if last else None,
                finish_reason=reason if last else None,
                stop_reason=piece.stop_reason if last and reason is not None else UNSET,
                token_ids=piece.token_ids if last and self._ids else UNSET,
            )
            chunks.append(self._chunk(choice, piece, shown, ticket if last else None))
        return chunks

    def usage_chunk(self) -> bytes | None:
        """The chunk behind all others."""
        if not self._ask.include_usage or self._collector is None:
            return None
        return _encode(self._body([], total_usage([self._collector])))

    def _choice(self, choice: Choice, piece: Piece) -> ChatChoice:
        parser = self._tools.parser()
        message = ParsedMessage(content=piece.text, tool_calls=())
        if parser is not None:
            message = parse_message(parser, piece.text)
        assert piece.finish_reason is not None
        calls = [
            ToolCall(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))
            for call in message.tool_calls
        ]
        return ChatChoice(
            index=choice.position,
            message=ChatMessage(content=message.content, tool_calls=calls or UNSET),
            logprobs=self._logprobs(piece),
            finish_reason=self._tools.finish_reason(piece.finish_reason, len(calls)),
            stop_reason=piece.stop_reason,
            token_ids=piece.token_ids if self._ids else UNSET,
        )

    def _deltas(self, position: int, piece: Piece) -> list[ChatDelta]:
        """What the chunks of a piece show. Without a parser one chunk, even for a token that is no text yet.

        With one, text is held back while it may belong to a call; then nothing is shown, except at the end.
        """
        if position not in self._parsers:
            self._parsers[position] = self._tools.parser()
        parser = self._parsers[position]
        if parser is None:
            return [ChatDelta(content=piece.text)]
        found: list[Delta] = parser.push(piece.text)
        if piece.finish_reason is not None:
            found = [*found, *parser.finish()]
        deltas = [self._delta(position, delta) for delta in found]
        needs_one = piece.finish_reason is not None or piece.logprobs or self._ids
        return deltas or ([ChatDelta()] if needs_one else [])

    def _delta(self, position: int, delta: Delta) -> ChatDelta:
        if isinstance(delta, ContentDelta):
            return ChatDelta(content=delta.text)
        assert isinstance(delta, ToolCallDelta)
        opening = delta.id is not None
        self._num_calls[position] = max(self._num_calls.get(position, 0), delta.index + 1)
        call = ToolCallChunk(
            index=delta.index,
            id=delta.id if delta.id is not None else UNSET,
            type="function" if opening else UNSET,
            function=FunctionCall(name=delta.name, arguments=delta.arguments),
        )
        return ChatDelta(tool_calls=[call])

    def _logprobs(self, piece: Piece) -> ChatLogprobs | None:
        if self._top is None:
            return None
        return chat_logprobs(piece.logprobs, self._ask.server.token_texts, self._name, self._top)

    def _chunk(self, choice: Choice, piece: Piece, shown: ChatChunkChoice, ticket: Ticket | None = None) -> bytes:
        usage: Usage | UnsetType = UNSET
        if self._ask.continuous_usage:
            output = choice.collector.output
            opening = shown.delta is _OPENING
            usage = usage_of(len(output.prompt_token_ids), 0 if opening else piece.num_tokens, output.num_cached_tokens)
        body = self._body([shown], usage, ticket)
        if self._ids and shown.delta is _OPENING:
            body = msgspec.structs.replace(body, prompt_token_ids=choice.collector.output.prompt_token_ids)
        return _encode(body)

    def _body(
        self, choices: list[ChatChunkChoice], usage: Usage | UnsetType, ticket: Ticket | None = None
    ) -> ChatChunk:
        return ChatChunk(
            id=self._ask.id,
            created=self._ask.created,
            model=self._ask.model,
            choices=choices,
            usage=usage,
            kv_transfer_params=self._ask.ticket_params(ticket),
        )
