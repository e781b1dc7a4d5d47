"""Chromium without a window, driven by the WebDriver protocol that Debian's chromium-driver speaks over HTTP."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = "" if CHROMIUM and DRIVER else "NO BROWSER: install Debian's chromium and chromium-driver to test the report"
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Right": "\ue014", "Home": "\ue011", "Space": " "}


class Chromium:
    """One browser session; a context."""

    def __init__(self, home: Path, *, width: int = 1280, height: int = 900) -> None:
        assert CHROMIUM, MISSING
        assert DRIVER, MISSING
        self._driver = subprocess.Popen(
            [DRIVER, "--port=0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "HOME": str(home)},
        )
        assert self._driver.stdout is not None
        port = None
        for line in self._driver.stdout:
            found = re.search(r"started successfully on port (\d+)", line)
            if found:
                port = found[1]
                break
        assert port, "chromium-driver did not start"
        self._root = f"http://127.0.0.1:{port}/session"
        arguments = [
            "--headless=new",
            "--no-sandbox",  # tests may run as root in a container; the page is ours
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--force-device-scale-factor=1",
            "--force-prefers-reduced-motion",  # nothing glides: a click hits what it aims at
            f"--window-size={width},{height}",
            f"--user-data-dir={home / 'profile'}",
        ]
        asked = {
            "browserName": "chrome",
            "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self._call("POST", "", {"capabilities": {"alwaysMatch": asked}})
        self._root += f"/{made['sessionId']}"

    def __enter__(self) -> Chromium:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait()
            assert self._driver.stdout is not None
            self._driver.stdout.close()

    def _call(self, verb: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if verb in ("GET", "DELETE") else json.dumps(body or {}).encode()
        asked = urllib.request.Request(self._root + path, data=data, method=verb)
        try:
            with urllib.request.urlopen(asked, timeout=60) as answer:
                return json.loads(answer.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None

    def open(self, address: str) -> None:
        """Opens a page, and waits until it has been drawn."""
        self._call("POST", "/url", {"url": address})
        self.until("document.documentElement.dataset.drawn === 'yes'")

    def get(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        return self._call("POST", "/execute/sync", {"script": f"return ({expression});", "args": []})

    def until(self, expression: str) -> Any:
        """Waits, within the browser, until an expression is true; 20 seconds at most."""
        script = (
            "const done = arguments[0], from = performance.now();"
            f"(function look() {{ const found = ({expression});"
            "if (found || performance.now() - from > 20000) done(found); else setTimeout(look, 20); })();"
        )
        found = self._call("POST", "/execute/async", {"script": script, "args": []})
        assert found, f"never true: {expression}"
        return found

    def _element(self, selector: str) -> str:
        found = self._call("POST", "/element", {"using": "css selector", "value": selector})
        return str(found[_ELEMENT])

    def click(self, selector: str) -> None:
        """Clicks the middle of an element."""
        self._call("POST", f"/element/{self._element(selector)}/click")

    def type(self, selector: str, text: str) -> None:
        """Types into a field."""
        self._call("POST", f"/element/{self._element(selector)}/value", {"text": text})

    def press(self, *names: str) -> None:
        """Presses keys, whatever has the focus."""
        steps = [{"type": kind, "value": KEYS.get(name, name)} for name in names for kind in ("keyDown", "keyUp")]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keys", "actions": steps}]})

    def hover(self, selector: str, x: int, y: int = 0) -> None:
        """Moves the mouse over an element, so far from its middle."""
        origin = {_ELEMENT: self._element(selector)}
        move = {"type": "pointerMove", "duration": 0, "x": x, "y": y, "origin": origin}
        away = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [away, move]}
        self._call("POST", "/actions", {"actions": [pointer]})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def resize(self, width: int, height: int, *, phone: bool = False) -> None:
        """The size of what is seen of a page."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A screenshot, of the whole page or of what is seen."""
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the console has said since it was last asked."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Every address that was asked for since this was last asked, but by pages of the browser itself."""
        logged = [json.loads(e["message"])["message"] for e in self._call("POST", "/se/log", {"type": "performance"})]
        sent = [entry["params"] for entry in logged if entry["method"] == "Network.requestWillBeSent"]
        return [each["request"]["url"] for each in sent if not each["documentURL"].startswith("chrome")]
