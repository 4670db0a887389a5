"""Child processes of a gateway: workers and the local model."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import BinaryIO


def start_child(
    arguments: Sequence[str], *, environment: Mapping[str, str] | None = None, output: BinaryIO | None = None, pass_fds: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    """Start this Python with ``arguments``, in a process group of its own: Ctrl-C reaches us, and we decide when the child goes.

    ``output`` takes what it writes; without it that goes where ours goes. Raises OSError.
    """
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=dict(os.environ if environment is None else environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=pass_fds,
        process_group=0,
    )
