"""Runs one program without root's uid and tied to the life of the process that started it.

Started as a script by :mod:`app.store.embedded`, never imported: the settings below must be made in the child itself, and
``preexec_fn`` is not safe in a process that has threads. Usage: ``embedded_exec.py ACCOUNT PARENT_PID PROGRAM [ARGUMENT ...]``.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

NOBODY_ID = 65534
"""The overflow uid and gid: no account has to be created for it, and no file of the system belongs to it."""

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_PR_SET_SECUREBITS = 28
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


def enter_user_namespace() -> None:
    """Map root to the overflow uid: files stay root's, so a 0700 home stays reachable. Raises OSError where it is refused."""
    uid, gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare(CLONE_NEWUSER)")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{NOBODY_ID} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{NOBODY_ID} {gid} 1")


def become_nobody() -> None:
    """Change to the overflow uid but keep root's right to pass folders (a checkout below a 0700 home), where there is one.

    Containers refuse user namespaces under the default seccomp profile but leave CAP_DAC_OVERRIDE to root; where that is
    missing as well, binaries and data must be reachable for everybody.
    """
    linux = sys.platform == "linux"
    libc = ctypes.CDLL(None, use_errno=True)
    if linux:
        # Keeps capabilities across setuid, and makes access(2), which Postgres asks about its binaries, count them.
        libc.prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP, 0, 0, 0)
    os.setgroups([])
    os.setgid(NOBODY_ID)
    os.setuid(NOBODY_ID)
    if linux:
        kept = 1 << _CAP_DAC_OVERRIDE
        header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
        sets = (ctypes.c_uint32 * 6)(kept, kept, kept, 0, 0, 0)  # effective, permitted, inheritable; then bits 32 to 63
        libc.capset(header, sets)
        libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, _CAP_DAC_OVERRIDE, 0, 0)


def tie_to_parent(parent_pid: int) -> None:
    """Have the kernel send SIGINT (Postgres' fast shutdown) when the parent is gone, however it went.

    Comes last because a change of uid clears the setting. Raises ProcessLookupError when the parent died before it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)
    if os.getppid() != parent_pid:
        raise ProcessLookupError(parent_pid, "the starting process is gone")


ACCOUNTS = {"self": lambda: None, "namespace": enter_user_namespace, "nobody": become_nobody}


def main(account: str, parent_pid: str, *program: str) -> None:
    """Replace this process by ``program``, run as ``account`` (a key of ACCOUNTS)."""
    ACCOUNTS[account]()
    tie_to_parent(int(parent_pid))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
