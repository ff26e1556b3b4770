"""Limits by API key: requests and tokens a minute, and requests at a time.

The file is a JSON object, by key; "*" stands for all keys that are not named, together:

    {"sk-one": {"requests_per_minute": 600, "tokens_per_minute": 1000000, "in_flight": 32}, "*": {"in_flight": 4}}

What is left out, or 0, is not limited. Without "*", neither are keys that are not named.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError
from baton.web.errors import ApiError

_OTHERS = "*"
_RETRY_S = 1  # where it is not known when another request ends


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of one key; 0: no limit."""

    requests_per_minute: float = 0
    tokens_per_minute: float = 0
    in_flight: int = 0

    def __post_init__(self) -> None:
        if min(self.requests_per_minute, self.tokens_per_minute, self.in_flight) < 0:
            raise ValueError("a limit must not be negative; leave it out for none")


class Bucket:
    """A token bucket that holds a minute's worth, full at first. Times are seconds of any one clock.

    An amount larger than the bucket passes when it is full, and leaves it in debt.
    """

    def __init__(self, per_minute: float, now: float) -> None:
        self._per_minute = per_minute
        self._level = per_minute
        self._filled_s = now

    def wait_s(self, amount: float, now: float) -> float:
        """Until the amount is there; 0 when it is."""
        missing = min(amount, self._per_minute) - self._level_at(now)
        return max(0.0, missing * 60 / self._per_minute)

    def take(self, amount: float, now: float) -> None:
        """Take it, or give back what was taken (an amount below 0)."""
        self._level = min(self._per_minute, self._level_at(now) - amount)
        self._filled_s = now

    def _level_at(self, now: float) -> float:
        return min(self._per_minute, self._level + max(0.0, now - self._filled_s) * self._per_minute / 60)


class Tenant:
    """What one key has used."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._in_flight_limit = limits.in_flight
        self._requests = Bucket(limits.requests_per_minute, now) if limits.requests_per_minute else None
        self._tokens = Bucket(limits.tokens_per_minute, now) if limits.tokens_per_minute else None
        self._num_in_flight = 0

    def admit(self, num_tokens: int, now: float) -> None:
        """Count a request that begins.

        Raises:
            ApiError: 429, with the seconds until it would be admitted; nothing is counted then.
        """
        if self._in_flight_limit and self._num_in_flight >= self._in_flight_limit:
            raise _limited(f"this key may have {self._in_flight_limit} requests at a time", _RETRY_S)
        for bucket, amount, noun in ((self._requests, 1, "requests"), (self._tokens, num_tokens, "tokens")):
            wait_s = bucket.wait_s(amount, now) if bucket else 0.0
            if wait_s > 0:
                raise _limited(f"this key's {noun} of the minute are used up", math.ceil(wait_s))
        self._num_in_flight += 1
        self._take(1, num_tokens, now)

    def end(self, num_unused: int, now: float) -> None:
        """A request that was admitted has ended, and so many of its tokens were not made."""
        self._num_in_flight -= 1
        self._take(0, -num_unused, now)

    def _take(self, num_requests: int, num_tokens: int, now: float) -> None:
        if self._requests:
            self._requests.take(num_requests, now)
        if self._tokens:
            self._tokens.take(num_tokens, now)


class TenantHold:
    """A request that was admitted."""

    def __init__(self, tenant: Tenant | None, num_tokens: int, clock: Callable[[], float]) -> None:
        self._tenant = tenant
        self._num_tokens = num_tokens
        self._clock = clock

    def release(self, num_used: int | None = None) -> None:
        """It has ended. A second call does nothing.

        Args:
            num_used: tokens it came to; None: all that were counted at its begin.
        """
        if self._tenant is not None:
            unused = 0 if num_used is None else max(0, self._num_tokens - num_used)
            self._tenant.end(unused, self._clock())
            self._tenant = None


class Tenants:
    """All keys of a limits file. Keys are kept and compared as SHA-256 digests."""

    def __init__(self, limits: Mapping[str, Limits], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        now = clock()
        self._others = Tenant(limits[_OTHERS], now) if _OTHERS in limits else None
        self._by_digest = {_digest(key): Tenant(limit, now) for key, limit in limits.items() if key != _OTHERS}

    def admit(self, key: str | None, num_tokens: int) -> TenantHold:
        """Count a request, to be released at its end.

        Args:
            key: the bearer token that came with it; None: it has none.
            num_tokens: of its prompt, and the most that it may generate.

        Raises:
            ApiError: 429 with Retry-After.
        """
        tenant = self._by_digest.get(_digest(key or ""), self._others)
        if tenant is not None:
            tenant.admit(num_tokens, self._clock())
        return TenantHold(tenant, num_tokens, self._clock)


def load_tenants(path: str) -> Tenants:
    """Read a limits file.

    Raises:
        ConfigError: it cannot be read, or is not as it should be.
    """
    try:
        return Tenants(msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Limits]))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the limits file {path}: {error}") from error


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _limited(message: str, retry_s: int) -> ApiError:
    error = ApiError(429, f"{message}; try again in {retry_s} s")
    error.headers["Retry-After"] = str(retry_s)
    return error
