"""The fleet's page in a real browser, and what its source may contain."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from baton.core.handoff import Role
from baton.router.panel import FleetPanel
from baton.router.record import Attempt
from baton.router.worker import WorkerState
from baton.web.page import load_page
from tests.router.showing import D0, D1, P0, Shown, request, worker
from tests.server.webdriver import CHROMEDRIVER, CHROMIUM, Browser, browser
from tests.web.serving import served

pytestmark = pytest.mark.slow
needs_browser = pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="no chromium with chromedriver")
ENTER, TAB = "\ue007", "\ue004"
EVIL = "<img src=x onerror=window.bad=1><script>window.bad=2</script>\u202e\"'&{{x}}"
WORKERS = (worker(P0, Role.PREFILL), worker(D0, Role.DECODE))


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as session:
        yield session


def opened(chromium: Browser, url: str) -> None:
    chromium.log()
    chromium.open(url)
    chromium.wait(lambda: chromium.text("#state") == "live", "the first event")


def rows(chromium: Browser) -> list[str]:
    script = "return [...document.querySelectorAll('#requests button.open')].map((each) => each.textContent)"
    found = chromium.run(script)
    assert isinstance(found, list)
    return found


def test_the_page_needs_nothing_from_elsewhere() -> None:
    html = load_page("baton.router").html.decode()
    outside = [url for url in re.findall(r"(?:https?:)?//[\w.]+", html) if url != "http://www.w3.org"]
    assert outside == []  # www.w3.org names the SVG namespace of the icon, it is not fetched
    assert re.findall(r"""(?:src|href)=["'](?!data:|metrics|fleet|v1/)""", html) == []
    assert " style=" not in html and not re.search(r"\son\w+=", html)  # the policy would not let them work
    assert "innerHTML" not in html and "insertAdjacentHTML" not in html and "eval(" not in html


@needs_browser
def test_engines_figures_and_links_are_shown_and_follow(chromium: Browser) -> None:
    shown = Shown((replace(WORKERS[0], handoff={"num_bytes": 0}), WORKERS[1]))
    for number in range(4):
        shown.add(request(time.time() - number))
    with served(shown.app()) as url:
        opened(chromium, url)
        assert chromium.text("#groups h3") == "Prefill (1)" and chromium.text("#ready") == "2 of 2 ready"
        card = chromium.text(".card")
        assert "10.0.0.1:8000" in card and "3 / 64" in card and "256 / 1,024" in card
        assert chromium.text("#bars .label") == (
            "Push, 45 msqueue 2.0 ms, prefill 30 ms, hand-over 8.0 ms, first decode step 5.0 ms"
        )
        assert re.search(r"First token at the client3[12] ms", chromium.text("#latency"))  # 32, in buckets of 4 %
        assert chromium.text("#links td") == "10.0.0.1:8000 \u2192 10.0.0.3:8000, push"
        chromium.run("document.querySelector('.card').mark = document.querySelector('#requests tbody').mark = 1")
        down = worker(D1, Role.DECODE, WorkerState.DOWN, note="no answer for 2.4 s", breaker="open")
        giver = replace(WORKERS[0], handoff={"num_bytes": 5_000_000})
        shown.panel = FleetPanel(workers=(giver, WORKERS[1], down), num_queued=7, mode="push")
        chromium.wait(lambda: chromium.text("#ready") == "2 of 3 ready", "the worker that is down")
        chromium.wait(lambda: "MB/s" in chromium.text("#links"), "bytes a second")
        assert "no answer for 2.4 s; circuit breaker open" in chromium.text(".card[data-state=down]")
        assert chromium.text("#queued") == "7"
        shown.add(request(time.time(), "newest"))
        chromium.wait(lambda: rows(chromium)[0] == "newest" and len(rows(chromium)) == 5, "the new request")
        # What was there is changed in place, never made anew.
        marks = "return [...document.querySelectorAll('.card, #requests tbody')].filter((each) => each.mark).length"
        assert chromium.run(marks) == 2
        resources = chromium.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert all(name.startswith((url, "data:")) for name in resources)
        assert chromium.log() == []
    chromium.wait(lambda: chromium.text("#state") == "unreachable", "the end of the router")


@needs_browser
def test_a_waterfall_opens_by_mouse_and_by_keyboard(chromium: Browser) -> None:
    shown = Shown(WORKERS)
    retried = request(time.time(), "retried", transfer_id="b" * 32)
    failed = Attempt(transfer_id="a" * 32, mode="pull", prefill=P0, placed_s=retried.arrival_s + 0.0005)
    failed.ended_s, failed.outcome = retried.arrival_s + 0.0015, "no connection"
    retried.attempts.insert(0, failed)
    with served(shown.app()) as url:
        shown.add(request(time.time() - 1, "other"))
        shown.add(retried)
        opened(chromium, url)
        chromium.wait(lambda: rows(chromium) == ["retried", "other"], "the requests")
        chromium.run("document.querySelector('#requests tbody button').focus()")
        chromium.type(":focus", ENTER)
        chromium.wait(lambda: "Attempt 2, push" in chromium.text("td.detail"), "the waterfall")
        detail = chromium.text("td.detail")
        assert "Prefill 30 ms, Hand-over 8.0 ms, First decode step 5.0 ms, Stream 387 ms" in detail
        assert f"Attempt 1 on 10.0.0.1:8000: no connection; transfer {'a' * 32}" in detail
        bars = chromium.run("return [...document.querySelectorAll('td.detail .track i')].map((bar) => bar.className)")
        assert bars == ["queue", "prefill", "prefill", "handover", "first_decode", "stream"]
        time.sleep(1.5)  # an update goes by
        assert chromium.run("return document.activeElement.textContent") == "retried"
        chromium.type(":focus", ENTER)
        chromium.wait(lambda: chromium.run("return !document.querySelector('td.detail')") is True, "it to close")
        chromium.click("#requests tbody:last-of-type tr")
        chromium.wait(lambda: "Attempt 1, push" in chromium.text("td.detail"), "the other waterfall")
        chromium.click("td.detail .zoom")
        assert chromium.text("td.detail .axis span:last-child") == "432 ms"
        chromium.click("input[value=troubled]")
        chromium.wait(lambda: "retried" in rows(chromium), "the one that was retried")
        errors = [each for each in chromium.log() if "/trace/" not in each["message"]]
        assert errors == []  # the made-up workers have no traces, which the browser's log mentions


@needs_browser
def test_what_clients_and_workers_say_is_never_markup(chromium: Browser) -> None:
    evil = request(time.time(), EVIL)
    evil.path = evil.model = evil.error = evil.attempts[0].outcome = evil.attempts[0].mode = EVIL
    evil.attempts[0].transfer_id = ""
    bad = replace(worker(EVIL, Role.PREFILL, note=EVIL, breaker=EVIL, unpaired={EVIL: EVIL}), url=EVIL)
    assert bad.facts is not None
    shown = Shown((replace(bad, facts=replace(bad.facts, models=(EVIL,), fingerprint=EVIL)), *WORKERS))
    shown.add(evil)
    with served(shown.app()) as url:
        opened(chromium, url)
        chromium.click("#requests button.open")
        chromium.wait(lambda: EVIL in chromium.text("td.detail"), "the text")
        assert EVIL in chromium.text(".card") and rows(chromium) == [EVIL]
        time.sleep(1.2)
        assert chromium.run("return window.bad === undefined && !document.querySelector('img, main script')") is True
        assert chromium.log() == []


@needs_browser
def test_hold_keeps_the_table_still(chromium: Browser) -> None:
    shown = Shown(WORKERS)
    with served(shown.app()) as url:
        opened(chromium, url)
        assert chromium.run("return document.getElementById('no-requests').hidden") is False
        shown.add(request(time.time(), "first"))
        chromium.wait(lambda: rows(chromium) == ["first"], "a request")
        chromium.click("#hold")
        shown.add(request(time.time(), "second"))
        time.sleep(1.5)
        assert rows(chromium) == ["first"] and chromium.text("#hold") == "Go on"
        chromium.click("#hold")
        assert rows(chromium) == ["second", "first"]


@needs_browser
def test_a_key_is_asked_for_and_can_be_given(chromium: Browser) -> None:
    shown = Shown(WORKERS)
    with served(shown.app(("secret",))) as url:
        chromium.open(url)
        chromium.wait(lambda: chromium.text("#state") == "locked", "the question for a key")
        chromium.type("#key", f"wrong{ENTER}")
        chromium.wait(lambda: "not accepted" in chromium.text("#refused"), "the refusal")
        chromium.type("#key", "\ue009a\ue009" + f"secret{ENTER}")
        chromium.wait(lambda: chromium.text("#state") == "live", "the fleet")
        assert chromium.run("return document.getElementById('locked').hidden") is True


@needs_browser
def test_nobody_is_asked_while_the_page_is_hidden(chromium: Browser) -> None:
    shown = Shown(WORKERS)
    with served(shown.app()) as url:
        opened(chromium, url)
        assert shown.page.num_viewers == 1
        chromium.run(
            "Object.defineProperty(document, 'hidden', { value: true, configurable: true });"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        chromium.wait(lambda: shown.page.num_viewers == 0, "the stream to end")
        chromium.run("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        chromium.wait(lambda: shown.page.num_viewers == 1, "the stream to come back")


@needs_browser
@pytest.mark.parametrize("count", [0, 50])
def test_no_engine_and_fifty_fit_a_phone(chromium: Browser, count: int) -> None:
    roles = (Role.PREFILL, Role.DECODE)
    shown = Shown(tuple(worker(f"http://10.0.1.{number}:8000", roles[number % 2]) for number in range(count)))
    for number in range(40):
        shown.add(request(time.time() - number, f"request-{number}" * 8, prefill=f"http://10.0.1.{number}:8000"))
    with served(shown.app()) as url:
        opened(chromium, url)
        assert chromium.run("return document.querySelectorAll('.card').length") == count
        assert chromium.run("return document.getElementById('no-engines').hidden") is (count > 0)
        size = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
        chromium.command("Emulation.setDeviceMetricsOverride", **size)
        chromium.click("#requests button.open")
        wide = "return document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert chromium.run(wide) == 0
        chromium.command("Emulation.clearDeviceMetricsOverride")


@needs_browser
def test_the_keyboard_reaches_everything(chromium: Browser) -> None:
    shown = Shown(WORKERS)
    shown.add(request(time.time(), "only"))
    with served(shown.app()) as url:
        opened(chromium, url)
        chromium.wait(lambda: rows(chromium) == ["only"], "the request")
        reached = []
        chromium.run("document.activeElement.blur()")
        chromium.type("body", TAB)
        for _ in range(6):
            name = "const at = document.activeElement; return at.name || at.id || at.className || at.textContent"
            reached.append(chromium.run(name))
            chromium.type(":focus", TAB)
        assert reached == ["window", "which", "hold", "requests-scroll", "open", "Metrics"]
