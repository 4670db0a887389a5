"""A tenant's webhook server as a process of its own, to be called, watched and killed. It checks signatures with the receiver's own code.

``/answer`` answers with the arguments it got, ``/broken`` with 500, ``/held`` never.
"""

import asyncio
import json
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.fakes.standard_webhooks import verify

SECRET = "whsec_c2lnbmluZyBrZXkgb2YgdGhlIHRlc3Rz"
_ROOT = Path(__file__).parents[2]


@dataclass(slots=True)
class WebhookProcess:
    """The process as its test sees it; ``calls`` are the requests reported so far."""

    base_url: str
    process: asyncio.subprocess.Process
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def next_call(self) -> dict[str, Any]:
        """The next request that arrived. Raises AssertionError when the process has ended instead."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the webhook server has ended"
        call: dict[str, Any] = json.loads(line)
        self.calls.append(call)
        return call

    async def kill(self) -> None:
        """End it at once, its open connections with it."""
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


@asynccontextmanager
async def webhook_process() -> AsyncIterator[WebhookProcess]:
    """A server that is listening on loopback."""
    pipe, away = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.e2e.webhook_process", cwd=_ROOT, stdin=pipe, stdout=pipe, stderr=away
    )
    assert process.stdout is not None
    running = WebhookProcess(f"http://127.0.0.1:{int(await process.stdout.readline())}", process)
    try:
        yield running
    finally:
        await running.kill()


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            verify(SECRET, headers, body, time.time())
            fault = ""
        except (AssertionError, KeyError, ValueError) as error:
            fault = f"{type(error).__name__}: {error}"
        call = json.loads(body)
        _report(json.dumps({"path": self.path, "headers": headers, "body": call, "fault": fault}))
        if self.path == "/held":
            threading.Event().wait()
        status = 401 if fault else 500 if self.path == "/broken" else 200
        answer = json.dumps({"got": call["arguments"]} if status == 200 else {"error": fault or "out of order"}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _serve() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    _report(str(server.server_address[1]))
    sys.stdin.read()  # ends with the test's process


if __name__ == "__main__":
    _serve()
