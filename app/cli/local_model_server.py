"""Serves a .gguf model with llama.cpp's own HTTP server until SIGTERM, or until the process that started it is gone.

Started as a script by :mod:`app.cli.local_model`, never imported. Usage: ``local_model_server.py PARENT_PID WEIGHTS PORT NAME TEMPLATE``.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

import xllamacpp

_PR_SET_PDEATHSIG = 1
_SLOTS = 2
_SLOT_TOKENS = 4_096


def main(parent_pid: str, *serving: str) -> None:
    """Load the model and serve it on loopback."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent_pid):
        raise ProcessLookupError(parent_pid, "the starting process is gone")
    weights, port, name, template = serving
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = int(port)
    params.n_gpu_layers = 0
    params.n_ctx = _SLOTS * _SLOT_TOKENS
    params.n_parallel = _SLOTS
    params.use_jinja = True
    params.chat_template = Path(template).read_text("utf-8")
    params.sampling.temp = 0.0  # so small a model wanders off otherwise
    params.warmup = True
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    os._exit(0)  # the library has threads that wait for open streams


if __name__ == "__main__":
    main(*sys.argv[1:])
