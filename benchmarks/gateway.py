"""The gateway under test, as `python -m app serve` runs it, on a free port that it says. Drains when standard input ends.

Told `objects`, it answers with the Python objects that it keeps, by class, one JSON line.
"""

import asyncio
import gc
import os
import signal
import socket
from collections import Counter

import msgspec
import uvloop

from app.logs import configure_logging
from app.main import serve
from app.settings import Settings
from benchmarks.lines import say, standard_input

OBJECTS = b"objects"


def _objects() -> dict[str, int]:
    """How many objects of each class the garbage collector knows; those without references to others are not among them."""
    gc.collect()
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


async def _obey(orders: asyncio.StreamReader) -> None:
    while (await orders.readline()).strip() == OBJECTS:
        say(msgspec.json.encode(_objects()))
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
    watching = asyncio.ensure_future(_obey(orders))
    try:
        await serve(settings, settings.database_url.get_secret_value(), [listener])
    finally:
        watching.cancel()


if __name__ == "__main__":
    uvloop.run(_main())
