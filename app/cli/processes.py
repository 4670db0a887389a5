"""Sockets, signals and processes of a gateway that serves."""

import argparse
import asyncio
import ctypes
import errno
import importlib.util
import ipaddress
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from importlib import import_module

from app.cli.errors import CommandError

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_MAX_PORT = 65_535


def port_number(text: str) -> int:
    """An argparse type: a port, 0 for a free one."""
    number = int(text)
    if not 0 <= number <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"must be 0 to {_MAX_PORT}")
    return number


def new_event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loops where it is installed, else asyncio's own."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, inheritable by workers. Raises CommandError when the address is taken or none of ours."""
    try:
        listener = _bound(host, port)
    except OSError as error:
        hint = " Is another gateway running? Choose another --port." if error.errno == errno.EADDRINUSE else ""
        raise CommandError(f"Cannot listen on {host} port {port}: {error.strerror or error}.{hint}") from None
    listener.set_inheritable(True)
    return listener


def _bound(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def url_of(listener: socket.socket) -> str:
    """The address to try from this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "localhost"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def stop_on_sigterm() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that what was opened is closed; as pid 1 of a container it would do nothing."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent is gone, however it went. Raises CommandError when it is gone already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise CommandError("The process that started this worker is gone.")


class ExitWatchdog:
    """Ends the process for good when it has not ended ``limit_s`` after :meth:`arm`: a tool may swallow its cancellation."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._armed: queue.SimpleQueue[None] = queue.SimpleQueue()  # its put may be called inside a signal handler
        threading.Thread(target=self._watch, name="exit-watchdog", daemon=True).start()

    def arm(self) -> None:
        """Start to count; later calls change nothing."""
        self._armed.put(None)

    def _watch(self) -> None:
        self._armed.get()
        threading.Event().wait(self._limit_s)
        logger.error("the process did not end in time and is ended now", extra={"limit_s": self._limit_s})
        os._exit(1)
