"""Exported pages under test: a static server for them, and a page in the browser with its complaints."""

import functools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

PATIENCE_MS = 60_000


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address of a server of that folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Visit:
    """A page in the browser, with what it complained about and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, address: str) -> "Visit":
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector("body[data-state=ready], body[data-state=failed]")
        return self

    def until(self, condition: str, given: Any = None) -> None:
        """Wait for an expression of JavaScript, or a function of what is ``given``.

        Playwright's own waiting evaluates text inside the page, which the page's policy forbids.
        """
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(condition, given):
            assert time.monotonic() < deadline, f"it never came: {condition}"
            self.page.wait_for_timeout(20)

    def drawn(self, draws: int = 20) -> dict[str, Any]:
        """What every model says once each has made its draws."""
        self.until(
            "draws => qbayesPage.state() === 'ready' && qbayesPage.input() !== null"
            " && Object.values(qbayesPage.answers()).every((one) => one.draws.length === draws)",
            draws,
        )
        return self.page.evaluate("qbayesPage.answers()")

    def input(self) -> list[float]:
        return self.page.evaluate("qbayesPage.input()")

    @property
    def message(self) -> str:
        return self.page.locator("#message").inner_text()

    def told(self, words: str) -> str:
        """The message, once it has these words."""
        self.until("words => document.getElementById('message').textContent.includes(words)", words)
        return self.message

    def stroke(self, *points: tuple[float, float]) -> None:
        """A line by the mouse through points in shares of the drawing area."""
        self.page.locator("#pad").scroll_into_view_if_needed()
        box = self.page.locator("#pad").bounding_box()
        at = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
        self.page.mouse.move(*at[0])
        self.page.mouse.down()
        for place in at[1:]:
            self.page.mouse.move(*place, steps=5)
        self.page.mouse.up()

    @property
    def overflow(self) -> int:
        """Pixels by which the page is wider than the window."""
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
