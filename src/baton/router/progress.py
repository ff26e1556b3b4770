"""How far a request is: what its client has, and how the next attempt is to go on."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from msgspec import Raw

from baton.router.body import Asked, new_seed
from baton.router.client import Client
from baton.router.demand import Demand
from baton.router.record import RequestRecord
from baton.router.relay import First, has_logprobs, may_relay, relayable, relayed_events
from baton.router.shown import Shown
from baton.router.stream import EventStream, RawStream
from baton.router.usage import PromptUsage
from baton.router.worker import WorkerKind, WorkerRef
from baton.web.errors import ApiError


class _Counts(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Whole(msgspec.Struct, frozen=True):
    usage: _Counts = _Counts()


_read_whole = msgspec.json.Decoder(_Whole).decode


class Progress:
    """Of one request, over its attempts.

    Attributes:
        shown: what the client has of a stream.
        usage: of the prompt, once a prefill worker has said it.
        relays: the first token may come from the prefill worker.
    """

    def __init__(self, asked: Asked, client: Client, record: RequestRecord) -> None:
        self._asked = asked
        self._record = record
        self._seed: Raw | None = None
        self._shown_logprobs = 0
        self._untracked = False
        self.client = client
        self.shown = Shown()
        self.usage: PromptUsage | None = None
        self.relays = relayable(asked)
        wishes = asked.wishes
        self._goes_on = (
            bool(wishes.stream)
            and asked.demand.splittable
            and (wishes.n or 1) == 1
            and not asked.constrained
            and wishes.prompt_logprobs is None
        )
        options = wishes.stream_options
        self._shows_usage = options is not None and bool(options.include_usage)

    @property
    def tracks(self) -> bool:
        """Whether it is noted what the client has."""
        return self._goes_on or self.relays

    @property
    def resumed(self) -> bytes:
        """Ids of the tokens that the client has, with commas between them; b"" when they are to be made again."""
        return self.shown.ids if self._goes_on and self.shown.resumable else b""

    @property
    def can_go_on(self) -> bool:
        """Whether another attempt can bring the rest of the answer, or all of it."""
        if not self.client.started:
            return True
        return not self._untracked and (bool(self.resumed) or self.shown.num_tokens <= 1)

    def demand(self, resumed: bytes) -> Demand:
        """What the next attempt asks of the fleet. An answer that is gone on with is not handed over."""
        demand = self._asked.demand
        if not resumed:
            return demand
        num_tokens = self.shown.num_tokens
        return replace(
            demand,
            num_prompt_tokens=demand.num_prompt_tokens + num_tokens,
            num_new_tokens=max(1, demand.num_new_tokens - num_tokens),
            splittable=False,
        )

    def seed_for(self, worker: WorkerRef) -> Raw | None:
        """For a request that has none; workers of others draw as they like."""
        if worker.facts.kind is not WorkerKind.BATON:
            return None
        if self._seed is None:
            self._seed = new_seed()
        return self._seed

    def learn(self, first: First) -> None:
        """The prefill worker has answered."""
        self.usage = first.prompt_usage
        self._record.num_prompt_tokens = self.usage.num_tokens
        self._record.num_cached_tokens = self.usage.num_cached_tokens or 0

    async def relay(self, giver: WorkerRef, first: First) -> None:
        """Give the client token 1 already, where that is sound."""
        ours = giver.facts.kind is WorkerKind.BATON
        if not (ours and self.relays and not self.client.started):
            return
        if not may_relay(self._asked, first, giver.facts.max_model_len):
            return
        events = relayed_events(self._asked, first)
        for event in events:
            self.shown.add(event, b"", int(event is events[-1]))
        self.shown.created = str(first.created).encode()
        self._shown_logprobs = int(has_logprobs(first))
        self._record.relayed = True
        await self.client.events(b"".join(events))

    def reader(self, worker: WorkerRef, resumed: bytes) -> RawStream | EventStream:
        """For the stream of the worker that decodes.

        Raises:
            ApiError: it is one of others, which cannot go on with an answer.
        """
        ours = worker.facts.kind is WorkerKind.BATON
        shown = self.shown if ours and self.tracks else None
        self._untracked = shown is None
        skip = None
        if self.client.started:
            if shown is None:
                raise ApiError(503, f"worker {worker.worker_id} cannot go on with an answer", retry=True)
            skip = shown.rest_of(logprobs=0 if resumed else self._shown_logprobs)
        if shown is None and not self._shows_usage:
            return RawStream()
        return EventStream(shown=shown, skip=skip, usage=(lambda: self.usage) if self._shows_usage else None)

    def count_whole(self, answer: bytes) -> None:
        """Note the token counts of an answer in one piece."""
        try:
            usage = _read_whole(answer).usage
        except msgspec.DecodeError:
            return
        self._record.num_prompt_tokens = usage.prompt_tokens
        self._record.num_new_tokens = usage.completion_tokens
