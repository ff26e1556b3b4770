"""A headless Chromium over the WebDriver protocol (https://www.w3.org/TR/webdriver2/): the verbs a test needs."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's key of an element reference
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-proxy-server"),
)


class Browser:
    """One browser session."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def _call(self, method: str, path: str, body: object = None) -> Any:
        answer = self._client.request(method, f"/session/{self._session}{path}", json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    def open(self, url: str) -> None:
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in the page; what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def text(self, selector: str) -> str:
        text = self.run("return document.querySelector(arguments[0]).textContent", selector)
        assert isinstance(text, str)
        return text

    def _element(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        self._call("POST", f"/element/{self._element(selector)}/click", {})

    def type(self, selector: str, text: str) -> None:
        """Press the keys of `text` in an element; Enter is "\\ue007", Escape "\\ue00c", Tab "\\ue004"."""
        self._call("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def command(self, name: str, **parameters: object) -> Any:
        """A command of the DevTools protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def log(self) -> list[dict[str, Any]]:
        """What the page complained about since the last call: errors, and violations of its policy."""
        return list(self._call("POST", "/se/log", {"type": "browser"}))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 15.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited {seconds} s for: {what}"
            time.sleep(0.05)


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A browser with a fresh profile in this folder. Both processes end with the block."""
    assert CHROMIUM and CHROMEDRIVER
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    driver = subprocess.Popen([CHROMEDRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            _until_up(client)
            options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={profile}"]}
            wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
            answer = client.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
            assert answer.status_code == 200, answer.text
            session = answer.json()["value"]["sessionId"]
            try:
                yield Browser(client, session)
            finally:
                client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(10)


def _until_up(client: httpx.Client) -> None:
    deadline = time.monotonic() + 20
    while True:
        try:
            if client.get("/status").json()["value"]["ready"]:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "chromedriver did not start"
        time.sleep(0.05)
