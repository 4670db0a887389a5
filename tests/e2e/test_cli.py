"""The command line as its users have it: real processes, real signals, a real Postgres."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread

import httpx
import pytest

ROOT = Path(__file__).parents[2]
READY = "The gateway takes requests at "
WELCOME = "The gateway runs at "
START_S = 40.0
END_S = 30.0

pytestmark = pytest.mark.timeout(150)  # several processes start in each test, on a machine that may be busy
STUBBORN_TOOL = """
import asyncio
from app.tools.operator import Tool

async def stubborn() -> str:
    \"\"\"Never ends, whatever is asked of it.\"\"\"
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

TOOLS = [Tool(stubborn, parameters={"type": "object", "properties": {}})]
"""


def environment(**variables: str) -> dict[str, str]:
    """Ours without what would configure a gateway, and ``variables``."""
    foreign = ("GATEWAY_", "OPENAI_", "OPENROUTER_", "DATABASE_URL")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """One command that ends by itself."""
    command = [sys.executable, "-m", "app", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, timeout=50, check=False)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@dataclass(slots=True)
class Running:
    """A command that goes on; what it says is kept."""

    process: subprocess.Popen[str]
    said: list[str] = field(default_factory=list)
    reader: Thread | None = None

    def wait_for(self, beginning: str) -> str:
        """The first line that begins so, without its beginning; the process must live until it comes."""
        ends_at = time.monotonic() + START_S
        while time.monotonic() < ends_at:
            for line in list(self.said):
                if line.startswith(beginning):
                    return line.removeprefix(beginning)
            assert self.process.poll() is None, self.said
            time.sleep(0.02)
        raise AssertionError(f"no line {beginning!r}: {self.said}")

    def end(self, sent: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(sent)
        return self.process.wait(END_S)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))


@contextmanager
def running(*arguments: str, **variables: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "app", *arguments]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    started = Running(process)
    started.reader = Thread(target=started.read, daemon=True)
    started.reader.start()
    try:
        yield started
    finally:
        process.kill()
        process.wait()
        started.reader.join(10)
        if process.stdout is not None:
            process.stdout.close()


def demo_variables(database_url: str, data_dir: Path) -> dict[str, str]:
    return {"DATABASE_URL": database_url, "GATEWAY_DATA_DIR": str(data_dir), "GATEWAY_DEMO_SIMULATOR_PORT": str(free_port())}


def children_of(pid: int) -> set[int]:
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            found.add(int(folder.name))
    return found


def eventually(holds: Callable[[], bool], within_s: float = START_S) -> None:
    ends_at = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < ends_at, "it did not come about in time"
        time.sleep(0.05)


def takes_requests(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").is_success
    except httpx.TransportError:
        return False


def start_turn(client: httpx.Client, text: str, **options: object) -> str:
    session = client.post("/sessions").raise_for_status().json()["id"]
    started = client.post(f"/sessions/{session}/turns", json={"input": text, "background": True, **options}).raise_for_status()
    turn: str = started.json()["id"]
    return turn


def test_dev_prints_what_is_needed_for_a_first_turn_and_keeps_its_key(tmp_path: Path) -> None:
    data_dir = tmp_path / "a folder with spaces"
    variables = {"GATEWAY_DATA_DIR": str(data_dir), "GATEWAY_DEMO_SIMULATOR_PORT": str(free_port())}
    with running("dev", "--port", "0", **variables) as gateway:
        url = gateway.wait_for(WELCOME).split()[0]
        gateway.wait_for("More turns")
        text = "\n".join(gateway.said)
        assert "Answers come from the simulator, not from a model." in text
        key = (data_dir / "demo-key").read_text().strip()
        assert key in text
        assert (data_dir / "demo-key").stat().st_mode & 0o777 == 0o600
        lines = [line for line in gateway.said if line.startswith(("KEY=", "curl"))]
        pasted = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, timeout=30, check=True)
        assert "event: turn.started" in pasted.stdout
        assert '"provider":"simulator"' in pasted.stdout
        assert "event: turn.completed" in pasted.stdout

        shown = run("demo", "--url", url, **variables)
        assert shown.returncode == 0, shown.stdout + shown.stderr
        assert "All four turns ended as they should." in shown.stdout
        assert "turn.interrupted" in shown.stdout
        assert "tool.completed  get_time" in shown.stdout
        assert max(len(line) for line in shown.stdout.splitlines()) < 80

        listed = run("tenants", "list", **variables)
        assert [line.split()[0] for line in listed.stdout.splitlines()] == ["NAME", "demo"]
        refused = run("serve", "--port", url.rpartition(":")[2], **variables)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "in use" in refused.stderr
        assert gateway.end(signal.SIGINT) == 0
    with running("dev", "--port", "0", **variables) as gateway:
        gateway.wait_for("More turns")
        assert key not in "\n".join(gateway.said)
        assert (data_dir / "demo-key").read_text().strip() == key
        assert gateway.end() == 0
    assert "no gateway" in run("demo", "--url", url, **variables).stderr.lower()


def test_a_dead_worker_is_replaced_and_all_leave_with_a_signal(database_url: str, tmp_path: Path) -> None:
    variables = demo_variables(database_url, tmp_path)
    with running("serve", "--demo", "--port", "0", "--workers", "2", **variables) as gateway:
        url = gateway.wait_for(READY)
        before = children_of(gateway.process.pid)
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: len(children_of(gateway.process.pid) - {victim}) == 2)
        eventually(lambda: takes_requests(url))
        key = (tmp_path / "demo-key").read_text().strip()
        with httpx.Client(base_url=url, headers={"x-api-key": key}) as client:
            turn = start_turn(client, "[[sim tokens=5000 pace_ms=50]]")
            with client.stream("GET", f"/turns/{turn}/events") as stream:
                lines = stream.iter_lines()
                assert any(line == "event: message.delta" for line in lines)
                gateway.process.send_signal(signal.SIGTERM)
                rest = list(lines)
        assert rest[-2 if rest[-1] == "" else -1].startswith('data: {"type":"turn.interrupted"')
        assert gateway.process.wait(END_S) == 0


def test_workers_die_with_a_parent_that_is_killed(database_url: str, tmp_path: Path) -> None:
    variables = demo_variables(database_url, tmp_path)
    with running("serve", "--port", "0", "--workers", "2", **variables) as gateway:
        url = gateway.wait_for(READY)
        workers = children_of(gateway.process.pid)
        gateway.process.kill()
        eventually(
            lambda: not any(Path(f"/proc/{worker}/fd").exists() and os.access(f"/proc/{worker}/exe", os.X_OK) for worker in workers), END_S
        )
    with running("serve", "--port", url.rpartition(":")[2], **variables) as gateway:
        assert gateway.wait_for(READY) == url
        assert gateway.end() == 0


def test_a_worker_that_cannot_start_ends_the_gateway_with_its_reason(database_url: str, tmp_path: Path) -> None:
    variables = {**demo_variables(database_url, tmp_path), "GATEWAY_TOOL_MODULES": "no_such_module"}
    for workers in ("1", "2"):
        ended = run("serve", "--port", "0", "--workers", workers, **variables)
        assert ended.returncode == 2
        assert "error: Tool module no_such_module cannot be imported" in ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_tool_that_cannot_be_cancelled_does_not_keep_the_process(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "stubborn_tool.py").write_text(STUBBORN_TOOL)
    variables = demo_variables(database_url, tmp_path) | {
        "GATEWAY_TOOL_MODULES": "stubborn_tool",
        "GATEWAY_DRAIN_GRACE_S": "1.5",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
    }
    with running("serve", "--demo", "--port", "0", **variables) as gateway:
        url = gateway.wait_for(READY)
        key = (tmp_path / "demo-key").read_text().strip()
        with httpx.Client(base_url=url, headers={"x-api-key": key}) as client:
            turn = start_turn(client, "[[sim tool=stubborn]]")
            with client.stream("GET", f"/turns/{turn}/events") as stream:
                assert any(line == "event: tool.started" for line in stream.iter_lines())
        started_at = time.monotonic()
        gateway.end()
        assert time.monotonic() - started_at < 1.5 + 5.0 + 2.0


def test_two_gateways_on_one_database_share_tenant_and_key(database_url: str, tmp_path: Path) -> None:
    variables = demo_variables(database_url, tmp_path / "one") | {"GATEWAY_DEMO_KEY": "agw_a-key-of-the-tests-1"}
    command = ("serve", "--demo", "--port", "0")
    with running(*command, **variables) as first, running(*command, **variables, HOME=str(tmp_path)) as second:
        urls = [gateway.wait_for(READY) for gateway in (first, second)]
        headers = {"x-api-key": "agw_a-key-of-the-tests-1"}
        turn = ""
        for url in urls:
            with httpx.Client(base_url=url, headers=headers, timeout=20) as client:
                turn = start_turn(client, "Hello")
                assert "event: turn.completed" in client.get(f"/turns/{turn}/events").text
        assert "event: turn.completed" in httpx.get(f"{urls[0]}/turns/{turn}/events", headers=headers).text
        assert first.end() == 0
        with httpx.Client(base_url=urls[1], headers=headers, timeout=20) as client:
            again = start_turn(client, "Hello again")
            assert "event: turn.completed" in client.get(f"/turns/{again}/events").text
        assert second.end() == 0


def test_where_nothing_can_be_kept_the_key_is_shown_once(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    variables = demo_variables(database_url, tmp_path / "a file" / "data")
    with running("serve", "--demo", "--port", "0", **variables) as first:
        url = first.wait_for(READY)
        key = first.wait_for("API key of the tenant demo, shown this once: ")
        assert httpx.get(f"{url}/sessions", headers={"x-api-key": key}).is_success
        with running("serve", "--demo", "--port", "0", **variables) as second:
            assert "shown where it was made" in second.wait_for("API key of the tenant demo: ")
            assert second.end() == 0
        assert first.end() == 0


def test_a_bootstrap_file_is_applied_and_its_new_keys_are_printed_once(database_url: str, tmp_path: Path) -> None:
    bootstrap = tmp_path / "tenants.toml"
    bootstrap.write_text('[[tenants]]\nname = "acme"\n')
    variables = {"DATABASE_URL": database_url, "GATEWAY_BOOTSTRAP_FILE": str(bootstrap)}
    with running("serve", "--port", "0", **variables) as gateway:
        url = gateway.wait_for(READY)
        key = gateway.wait_for("API key of the tenant acme, shown this once: ")
        assert httpx.get(f"{url}/sessions", headers={"x-api-key": key}).is_success
        assert gateway.end() == 0


def test_an_error_is_one_line_without_a_traceback() -> None:
    ended = run("serve", "--port", "0", DATABASE_URL="postgresql://u:pw-secret@127.0.0.1:1/x")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: The database cannot be reached")
    assert ended.stderr.count("\n") == 1
    assert "pw-secret" not in ended.stderr


def test_the_simulator_runs_alone() -> None:
    with running("simulate", "--port", "0", "--strict") as simulator:
        base_url = simulator.wait_for("The simulator answers at ")
        body = {"model": "sim", "messages": [{"role": "user", "content": '[[sim text="Hi."]]'}]}
        answer = httpx.post(f"{base_url}/chat/completions", json=body).json()
        assert answer["choices"][0]["message"]["content"] == "Hi."
        assert simulator.end(signal.SIGINT) == 0
