"""``python -m app``: see :mod:`app.cli`."""

import signal
import sys
from importlib import import_module


def run() -> int:
    """Run the command of the process's arguments; returns the exit code."""
    # Loading takes a moment. Ctrl-C in it ends the process as it ends any program, not with a traceback out of some import.
    interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    cli = import_module("app.cli")
    if interruptible:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code: int = cli.main(sys.argv[1:])
    return code


if __name__ == "__main__":
    sys.exit(run())
