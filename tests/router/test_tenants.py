"""Limits by key; the arithmetic of a token bucket that holds a minute's worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from baton.core.errors import ConfigError
from baton.router.tenants import Bucket, Limits, Tenants, load_tenants
from baton.web.errors import ApiError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def tenants(clock: Clock | None = None, **by_key: Limits) -> Tenants:
    return Tenants({key.replace("others", "*"): limits for key, limits in by_key.items()}, clock or Clock())


def retry_after(limited: Tenants, key: str | None, num_tokens: int = 1) -> str:
    with pytest.raises(ApiError) as caught:
        limited.admit(key, num_tokens)
    assert caught.value.status == 429
    return caught.value.headers["Retry-After"]


def test_a_bucket_fills_at_its_rate_and_no_higher() -> None:
    bucket = Bucket(60, now=0)  # one a second, 60 at first
    bucket.take(60, 0)
    assert bucket.wait_s(1, 0) == 1 and bucket.wait_s(10, 4) == 6 and bucket.wait_s(10, 10) == 0
    bucket.take(0, 1000)
    assert bucket.wait_s(60, 1000) == 0
    bucket.take(60, 1000)
    assert bucket.wait_s(1, 1000) == 1


def test_more_than_a_bucket_holds_passes_a_full_one_and_leaves_debt() -> None:
    bucket = Bucket(60, now=0)
    assert bucket.wait_s(600, 0) == 0
    bucket.take(600, 0)
    assert bucket.wait_s(1, 0) == 541  # 540 of debt, then the one
    assert bucket.wait_s(600, 599) == 1


def test_requests_a_minute() -> None:
    clock = Clock()
    limited = tenants(clock, k=Limits(requests_per_minute=6))
    for _ in range(6):
        limited.admit("k", 10**9)
    assert retry_after(limited, "k") == "10"  # one in ten seconds
    clock.now += 10
    limited.admit("k", 1)
    assert retry_after(limited, "k") == "10"


def test_tokens_a_minute_with_what_was_not_made_given_back() -> None:
    clock = Clock()
    limited = tenants(clock, k=Limits(tokens_per_minute=600))
    hold = limited.admit("k", 600)
    assert retry_after(limited, "k", 25) == "3"  # 2.5 s, in whole seconds
    hold.release(num_used=500)
    limited.admit("k", 100)
    assert retry_after(limited, "k", 10) == "1"


def test_a_refusal_counts_nothing() -> None:
    clock = Clock()
    limited = tenants(clock, k=Limits(requests_per_minute=6, tokens_per_minute=600))
    limited.admit("k", 600)
    for _ in range(20):
        retry_after(limited, "k", 600)
    clock.now += 60
    limited.admit("k", 600)


def test_requests_at_a_time() -> None:
    limited = tenants(k=Limits(in_flight=2))
    first, _ = limited.admit("k", 1), limited.admit("k", 1)
    assert retry_after(limited, "k") == "1"
    first.release()
    first.release()  # the second call does nothing
    limited.admit("k", 1)
    assert retry_after(limited, "k") == "1"


def test_keys_have_limits_of_their_own_and_the_others_share_one() -> None:
    limited = tenants(a=Limits(in_flight=1), b=Limits(in_flight=1), others=Limits(in_flight=1))
    for key in ("a", "b", "unknown"):
        limited.admit(key, 1)
    assert [retry_after(limited, key) for key in ("a", "b", "unknown", "other", "", None)] == ["1"] * 6


def test_without_a_limit_for_others_they_are_not_limited() -> None:
    limited = tenants(a=Limits(in_flight=1))
    for key in ("b", None, "ü\udcff"):
        for _ in range(100):
            limited.admit(key, 10**9)


def test_a_limits_file(tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text('{"sk-1": {"requests_per_minute": 60, "in_flight": 1}, "*": {}}')
    limited = load_tenants(str(path))
    limited.admit("sk-1", 1)
    assert retry_after(limited, "sk-1") == "1"
    limited.admit("other", 1)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"k": {"in_flight": -1}}', '{"k": {"inflight": 1}}', '{"k": {"in_flight": "x"}}']
)
def test_a_limits_file_that_is_not_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "limits.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"limits\.json"):
        load_tenants(str(path))
    with pytest.raises(ConfigError, match="nowhere"):
        load_tenants(str(tmp_path / "nowhere"))
