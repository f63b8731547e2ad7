"""A page in headless Chromium, driven through its DevTools protocol over a pipe: clicks and keys as
a person gives them, what the page asked of the network, and what it complained of."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--remote-debugging-pipe", "--window-size=1500,950",
)  # fmt: skip
PATIENCE = 60.0  # seconds until an answer is given up
KEYS = {
    "Enter": 13,
    "Escape": 27,
    "ArrowUp": 38,
    "ArrowDown": 40,
    "ArrowLeft": 37,
    "ArrowRight": 39,
}


def _pipe() -> list[int]:
    """A pipe whose numbers are none of the first few, which a shell gives away."""
    ends = os.pipe()
    high = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return high


class Chromium:
    """A browser with one page. `requests` are the addresses that the page asked for, `complaints`
    errors in its console."""

    def __init__(self, profile: Path):
        assert PROGRAM is not None
        (read, self._to), (self._from, write) = _pipe(), _pipe()
        script = f'exec "$@" 3<&{read} 4>&{write}'  # where Chromium looks for its pipe
        self._process = subprocess.Popen(
            ["bash", "-c", script, "bash", PROGRAM, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(read, write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(read)
        os.close(write)
        self._buffer, self._last, self._session = b"", 0, ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """Ends the browser."""
        self._process.terminate()
        self._process.wait(20)
        os.close(self._to)
        os.close(self._from)

    def send(self, method: str, **params: Any) -> Any:
        """A command of the protocol; its result."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]
            self._note(answer)

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([self._from], [], [], max(left, 0))
            data = os.read(self._from, 1 << 20) if ready else b""
            assert data, "Chromium gives no answer"
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.complaints.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(str(params["entry"]))

    # ---------------------------------------------------------------- a person's actions

    def open(self, path: Path) -> float:
        """Opens a file, and waits until its page is ready; the milliseconds that took, by the
        page's own clock."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.wait("document.documentElement?.dataset.ready === 'true'")
        return float(self.js("performance.now()"))

    def js(self, expression: str) -> Any:
        """The value of an expression, as JSON has it."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        """Waits until an expression is true."""
        deadline = time.monotonic() + PATIENCE
        while not self.js(condition):
            assert time.monotonic() < deadline, f"never: {condition}"
            time.sleep(0.02)

    def click(self, selector: str) -> None:
        """Clicks what a selector finds, in its middle; it has to be there, and not covered."""
        found = self.js(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            if (!e) return null;
            e.scrollIntoView({{block: "center", inline: "nearest"}});
            const r = e.getBoundingClientRect(), x = r.x + r.width / 2, y = r.y + r.height / 2;
            const top = document.elementFromPoint(x, y);
            return [x, y, e.contains(top) || (top || e).outerHTML.slice(0, 80)]; }})()"""
        )
        assert found, f"there is no {selector}"
        x, y, uncovered = found
        assert uncovered is True, f"{selector} is covered by {uncovered}"
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Presses a key."""
        code = KEYS.get(key, ord(key[0].upper()))
        text = {} if key in KEYS else {"text": key}
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code,
                      **(text if kind == "keyDown" else {}))  # fmt: skip

    def type(self, text: str) -> None:
        """Types a text."""
        self.send("Input.insertText", text=text)

    def texts(self, selector: str) -> list[str]:
        """The texts of all that a selector finds."""
        query = json.dumps(selector)
        return self.js(f"[...document.querySelectorAll({query})].map((e) => e.textContent)")

    def picture(self, path: Path) -> None:
        """What the page looks like, as PNG."""
        data = self.send("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))
