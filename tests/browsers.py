"""A real browser that shows a page and is told what to do in it, over Chromium's own pipe.

What goes wrong in a page (an exception, a violation of its policy, something logged as an error) is
kept in `faults`, and `driving` fails at its end where there is any.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.absent import absent

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 30.0

BEGIN = """import os, sys
of, to = (os.dup(os.dup(int(number))) for number in sys.argv[1:3])  # neither is 3 or 4
os.dup2(of, 3), os.dup2(to, 4)
os.execv(sys.argv[3], sys.argv[3:])"""
"""The browser reads descriptor 3 and writes 4."""

KEYS = {"Enter": (13, "\r"), "Tab": (9, ""), "Escape": (27, ""), "Space": (32, " ")}
TABS_MAX = 60
WIDE, PHONE = (1280, 800), (360, 740)


def browser_program() -> str:
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or absent("no Chromium: apt-get install chromium-headless-shell")


class PageFault(AssertionError):
    """What a page said about itself."""


class Tab:
    """One page in a browser."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self._browser = browser
        self._session = session
        self.faults: list[str] = []

    def call(self, method: str, **params: Any) -> Any:
        return self._browser.call(method, self._session, **params)

    def run(self, code: str) -> Any:
        """The value of an expression, of a promise what came of it."""
        done = self.call("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in done:
            raise PageFault(f"{code}: {done['exceptionDetails']['exception']['description']}")
        return done["result"].get("value")

    def wait(self, code: str) -> None:
        """Until an expression is true. Fails with what is shown when it does not become so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(PageFault):  # the page before it may still be there
                if self.run(f"Boolean({code})"):
                    return
            assert time.monotonic() < deadline, f"{code} in vain; shown is:\n{self.text()}"
            time.sleep(0.02)

    def sees(self, text: str) -> None:
        self.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def text(self) -> str:
        return str(self.run("document.body?.innerText"))

    def go(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def click(self, text: str, within: str = "body") -> None:
        """The button, link or label with this text."""
        found = f"""[...document.querySelectorAll({json.dumps(within)})].flatMap(part =>
            [...part.querySelectorAll("button, a, summary, label")]).find(one =>
            one.innerText.trim() === {json.dumps(text)} && !one.disabled)"""
        self.wait(f"(one => one && (one.click(), true))({found})")

    def write(self, label: str, text: str) -> None:
        """Into the field with this label, as somebody who types."""
        found = f"""[...document.querySelectorAll("label")].filter(one =>
            one.innerText.trim() === {json.dumps(label)}).map(one => one.control).at(-1)"""
        self.wait(
            f"""(field => field && (field.focus(), field.value = {json.dumps(text)},
            field.dispatchEvent(new Event("input", {{bubbles: true}})),
            field.dispatchEvent(new Event("change", {{bubbles: true}})), true))({found})"""
        )

    def type(self, text: str) -> None:
        """Into what has the focus, as from a keyboard."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Enter, Tab, Escape or Space."""
        code, text = KEYS[key]
        given = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **given)
        self.call("Input.dispatchKeyEvent", type="keyUp", **given)

    def tab_to(self, text: str) -> None:
        """Go on with the key until something with this text has the focus."""
        for _ in range(TABS_MAX):
            self.press("Tab")
            if self.run("document.activeElement.innerText?.trim()") == text:
                return
        raise AssertionError(f"no way to {text!r} with the keyboard:\n{self.text()}")

    def size(self, wide: int, high: int, *, dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=wide, height=high, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def shot(self, path: Path) -> None:
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def heard(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.faults.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["source"] != "network":
            self.faults.append(params["entry"]["text"])  # security: a violation of the policy
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.faults.append(json.dumps(params["args"]))


class Browser:
    def __init__(self, to: Any, of: Any) -> None:
        self._to, self._of = to, of
        self._number = 0
        self._tabs: dict[str, Tab] = {}

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """Raises PageFault where the browser refuses."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        self._to.write(json.dumps(message).encode() + b"\0")
        self._to.flush()
        while True:
            heard = self._read()
            if heard.get("id") == self._number:
                if "error" in heard:
                    raise PageFault(f"{method}: {heard['error']['message']}")
                return heard["result"]
            if (tab := self._tabs.get(heard.get("sessionId", ""))) is not None:
                tab.heard(heard["method"], heard["params"])

    def _read(self) -> Any:
        found = bytearray()
        while (octet := self._of.read(1)) != b"\0":
            assert octet, "the browser is gone"
            found += octet
        return json.loads(found)

    def open(self, url: str = "about:blank") -> Tab:
        """A tab, which shares nothing with others but the browser."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = self._tabs[session] = Tab(self, session)
        for domain in ("Page", "Runtime", "Log"):
            tab.call(f"{domain}.enable")
        tab.size(*WIDE)
        tab.go(url)
        return tab

    @property
    def faults(self) -> list[str]:
        return [fault for tab in self._tabs.values() for fault in tab.faults]


@contextlib.contextmanager
def driving(folder: Path) -> Iterator[Browser]:
    """A browser, until the end of the block. Nothing of it asks anybody else."""
    arguments = [
        browser_program(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--no-first-run", "--no-proxy-server", f"--user-data-dir={folder}",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-pipe",
    ]  # fmt: skip
    left_out = ("DISPLAY", "DBUS_SESSION_BUS_ADDRESS")
    quiet = {k: v for k, v in os.environ.items() if k not in left_out}
    (their_in, our_out), (our_in, their_out) = os.pipe(), os.pipe()
    begin = [sys.executable, "-S", "-c", BEGIN, str(their_in), str(their_out)]
    with (folder / "browser.log").open("wb") as log:
        process = subprocess.Popen(
            [*begin, *arguments], stdout=log, stderr=log, env=quiet, start_new_session=True,
            pass_fds=(their_in, their_out),
        )  # fmt: skip
    os.close(their_in)
    os.close(their_out)
    try:
        with os.fdopen(our_out, "wb") as to, os.fdopen(our_in, "rb") as of:
            browser = Browser(to, of)
            yield browser
            assert browser.faults == []
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it is many processes
        process.wait()
