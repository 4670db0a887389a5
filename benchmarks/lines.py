"""How a child process hears the one that started it."""

import asyncio
import sys

_LINE_LIMIT = 1 << 25


async def standard_input() -> asyncio.StreamReader:
    """Lines of standard input; its end means that whoever started us is gone."""
    reader = asyncio.StreamReader(limit=_LINE_LIMIT)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


def say(line: bytes) -> None:
    """Write one line to standard output."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()
