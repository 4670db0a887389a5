"""The gateway under test, as `python -m app serve` runs it, on a free port that it says. Drains when standard input ends."""

import asyncio
import os
import signal
import socket

import uvloop

from app.logs import configure_logging
from app.main import serve
from app.settings import Settings
from benchmarks.lines import say, standard_input


async def _end_with_input(orders: asyncio.StreamReader) -> None:
    await orders.read()
    os.kill(os.getpid(), signal.SIGTERM)


async def _main() -> None:
    settings = Settings()
    assert settings.database_url is not None
    configure_logging(settings.log_level, [])
    orders = await standard_input()
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    say(str(listener.getsockname()[1]).encode())
    watching = asyncio.ensure_future(_end_with_input(orders))
    try:
        await serve(settings, settings.database_url.get_secret_value(), [listener])
    finally:
        watching.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
