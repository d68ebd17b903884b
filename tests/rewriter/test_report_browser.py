"""The page in headless Chromium (Debian's package `chromium`), driven over its debugging pipe."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sample_report

from rewriter import report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PATIENCE = 60  # seconds for one answer, on a busy machine
WIDTHS = (1280, 400)


class Browser:
    """Chromium with one page; commands and events are JSON, ended by a zero byte, on fd 3 and 4."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM, "these tests need Debian's package chromium: apt-get install -y chromium"
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
            "about:blank",
        ]
        # The shell puts the pipes where Chromium wants them.
        script = f'exec "$@" 3<&{to_browser} 4>&{from_browser}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "sh", CHROMIUM, *options],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._number = 0
        self._pending = b""
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def close(self) -> None:
        os.close(self._write)
        os.close(self._read)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def _receive(self, waiting_for: str) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while b"\0" not in self._pending:
            left = end - time.monotonic()
            ready = select.select([self._read], [], [], max(left, 0))[0]
            assert ready, f"Chromium did not answer within {PATIENCE} s: {waiting_for}"
            piece = os.read(self._read, 1 << 20)
            assert piece, f"Chromium ended while asked for {waiting_for}"
            self._pending += piece
        head, _, self._pending = self._pending.partition(b"\0")
        answer: dict[str, Any] = json.loads(head)
        return answer

    def open(
        self, url: str, width: int = 1280, *, dark: bool = False, scripts: bool = True
    ) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )
        # Without the first a new fragment would only scroll the old page.
        self._navigate("about:blank")
        self.events.clear()
        self._navigate(url)

    def _navigate(self, url: str) -> None:
        loader = self.call("Page.navigate", url=url)["loaderId"]

        def loaded(event: dict[str, Any]) -> bool:
            found = event.get("params", {})
            return found.get("name") == "load" and found.get("loaderId") == loader

        while not any(map(loaded, self.events)):
            self.events.append(self._receive(f"{url} to load"))

    def js(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str, text: str = "", code: int = 0) -> None:
        fields: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **fields)
        self.call("Input.dispatchKeyEvent", type="keyUp", **fields)

    def click(self, selector: str) -> None:
        box = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            " e.scrollIntoView({block: 'center', behavior: 'instant'});"
            " const r = e.getBoundingClientRect();"
            " return {x: r.x + r.width / 2, y: r.y + r.height / 2}; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def shot(self, target: Path) -> None:
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True)
        target.write_bytes(base64.b64decode(answer["data"]))

    def shown(self) -> list[str]:
        """The transforms in the table that can be seen."""
        rows = "[...document.querySelectorAll('.outcomes tbody tr')]"
        shown: list[str] = self.js(
            f"{rows}.filter(e => e.getClientRects().length).map(e => e.dataset.id)"
        )
        return shown

    def articles(self) -> list[str]:
        shown: list[str] = self.js(
            "[...document.querySelectorAll('article')]"
            ".filter(e => e.getClientRects().length).map(e => e.dataset.id)"
        )
        return shown

    def pressed(self) -> list[str]:
        pressed: list[str] = self.js(
            "[...document.querySelectorAll('[aria-pressed=true]')].map(e => e.dataset.outcome)"
        )
        return pressed


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    running = Browser(tmp_path_factory.mktemp("profile"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("pages")
    urls = {}
    for name, build in (("good", sample_report.good()), ("bad", sample_report.bad())):
        page = folder / f"{name}.html"
        text = report.html(
            build.base, build.rewritten, build.transforms, build.originals, build.artifacts
        )
        page.write_text(text, "utf-8")
        urls[name] = page.as_uri()
    return urls


ALL = sorted(transform.id for transform in sample_report.bad().transforms)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["good", "bad"])
def test_the_page_never_scrolls_sideways(
    browser: Browser, pages: dict[str, str], name: str, width: int, dark: bool, tmp_path: Path
) -> None:
    browser.open(pages[name], width, dark=dark)
    assert browser.js("innerWidth") == width
    assert browser.js("document.documentElement.scrollWidth") <= width
    # Nor does anything stick out of the window, cut off by a box that hides it.
    outside = browser.js(
        "[...document.querySelectorAll('body *')]"
        ".filter(e => !e.closest('pre, .skip, .hide, thead'))"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)"
        ".map(e => e.outerHTML.slice(0, 90))"
    )
    assert outside == []
    browser.shot(tmp_path / "page.png")  # kept by pytest, to be looked at
    keep = os.environ.get("REPORT_SHOTS")
    if keep:
        shade = "dark" if dark else "light"
        shutil.copy(tmp_path / "page.png", Path(keep) / f"{name}-{width}-{shade}.png")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_text_can_be_read_on_its_background(
    browser: Browser, pages: dict[str, str], dark: bool
) -> None:
    browser.open(pages["bad"], dark=dark)
    poor = browser.js(CONTRAST)
    assert poor == []


def test_the_fragment_filters_on_load(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["bad"] + "#outcome=drifted")
    assert browser.shown() == browser.articles() == ["daemon_drifted"]
    assert browser.pressed() == ["drifted"]
    assert browser.js("document.getElementById('shown').textContent") == "1 of 7 shown"
    browser.open(pages["bad"] + "#q=worker%2F7")
    assert browser.shown() == ["stable_argsort"]
    browser.open(pages["bad"] + "#outcome=nonsense")
    assert sorted(browser.shown()) == ALL


def test_buttons_filter_by_mouse(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["bad"])
    assert sorted(browser.shown()) == ALL
    browser.click("button[data-outcome=applied]")
    assert browser.shown() == ["stable_argsort", "worker_daemon"]
    assert browser.articles() == browser.shown()
    assert browser.pressed() == ["applied"]
    assert browser.js("location.hash") == "#outcome=applied"
    browser.click("button[data-outcome='']")
    assert sorted(browser.shown()) == ALL
    assert browser.js("location.hash") == ""


def test_buttons_and_text_filter_by_keyboard(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["bad"])
    for _ in range(40):
        browser.press("Tab", code=9)
        if browser.js("document.activeElement.dataset.outcome") == "applied":
            break
    else:
        pytest.fail("the button cannot be reached by the Tab key")
    assert browser.js("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press("Enter", "\r", 13)
    assert browser.shown() == ["stable_argsort", "worker_daemon"]
    while browser.js("document.activeElement.id") != "query":
        browser.press("Tab", code=9)
    for char in "SAMPL":
        browser.press(char, char)
    assert browser.shown() == ["stable_argsort"]
    assert browser.js("location.hash") == "#outcome=applied&q=SAMPL"
    browser.press("x", "x")
    assert browser.shown() == []
    assert browser.js("document.getElementById('none').hidden") is False
    browser.press("Enter", "\r", 13)  # must not send the form and load the page anew
    assert browser.js("document.getElementById('query').value") == "SAMPLx"


def test_a_link_to_a_hidden_transform_shows_it(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["bad"] + "#outcome=drifted")
    browser.js("location.hash = '#t-worker_daemon'")
    browser.call(
        "Runtime.evaluate", expression="new Promise(requestAnimationFrame)", awaitPromise=True
    )
    assert "worker_daemon" in browser.articles()
    assert browser.js("document.querySelector('#t-worker_daemon details').open") is True


def test_diffs_fold_and_open_together(browser: Browser, pages: dict[str, str]) -> None:
    browser.open(pages["good"])
    number = "document.querySelectorAll('details[open]').length"
    assert browser.js(number) == 3
    browser.click("[data-fold=close]")
    assert browser.js(number) == 0
    browser.click("[data-fold=open]")
    assert browser.js(number) == 3


def test_text_from_outside_stays_text(browser: Browser, pages: dict[str, str]) -> None:
    for name in ("good", "bad"):
        browser.open(pages[name])
        assert browser.js("document.title").startswith("vllm 0.18.0: ")
        assert (
            browser.js("document.querySelectorAll('article b, article img, article script').length")
            == 0
        )
        text = browser.js("document.querySelector('#t-worker_daemon').textContent")
        assert "</script><b>bold</b>" in text
        assert "{{ braces }}" in text
        assert '</script><b>not markup</b> & "quotes"' in text


def test_no_request_leaves_and_no_error_is_logged(browser: Browser, pages: dict[str, str]) -> None:
    for url in (pages["good"], pages["bad"] + "#outcome=applied"):
        browser.open(url)
        browser.js("document.title")
        asked = [
            event["params"]["request"]["url"]
            for event in browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
        assert asked
        assert all(re.match(r"(file|data):", address) for address in asked), asked
        wrong = ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled")
        assert [event for event in browser.events if event.get("method") in wrong] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_shows_without_scripts(
    browser: Browser, pages: dict[str, str], width: int
) -> None:
    browser.open(pages["bad"], width, scripts=False)
    assert sorted(browser.shown()) == sorted(browser.articles()) == ALL
    assert browser.js("document.getElementById('filter').getClientRects().length") == 0
    browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_versions_stand_side_by_side_or_below_each_other(
    browser: Browser, pages: dict[str, str]
) -> None:
    spot = (
        "(() => { const row = [...document.querySelectorAll('#t-worker_daemon tr.edit')]"
        ".find(e => e.querySelector('.code.old'));"
        " return ['old', 'new'].map(side => row.querySelector('.code.' + side)"
        ".getBoundingClientRect()).map(r => [r.x, r.y]); })()"
    )
    browser.open(pages["good"], 1280)
    old, new = browser.js(spot)
    assert old[0] < new[0]
    assert old[1] == new[1]
    browser.open(pages["good"], 400)
    old, new = browser.js(spot)
    assert old[0] == new[0]
    assert old[1] < new[1]
    # The words that changed stand out, and only those.
    marks = (
        "[...document.querySelectorAll('#t-worker_daemon .{} .x')].map(e => e.textContent).join('')"
    )
    assert browser.js(marks.format("old")) == "True"
    assert browser.js(marks.format("new")) == "ascend_runtime.executor.worker_daemon()"


#: The texts whose contrast to what is behind them is under 4.5 (WCAG AA).
CONTRAST = """
(() => {
  const parse = (css) => (css.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((value) => {
      const part = value / 255;
      return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const rgb = parse(getComputedStyle(at).backgroundColor);
      if (rgb.length === 3 || rgb[3] > 0) return rgb;
    }
    return [255, 255, 255];
  };
  const poor = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !element.getClientRects().length) continue;
    if (element.closest("script, style, .skip, .hide")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) {
      const text = walk.currentNode.data.trim().slice(0, 20);
      poor.add(`${element.className || element.tagName} "${text}" ${contrast.toFixed(2)}`);
    }
  }
  return [...poor];
})()
"""
