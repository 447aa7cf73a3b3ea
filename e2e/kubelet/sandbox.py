"""Becomes a container's process: `python sandbox.py FILE`, where FILE (JSON) says what to be.

A mount namespace of its own gives the process its volumes at their paths and its own /etc/hosts;
nothing of it shows on the machine. With root that is one system call; without, a user namespace is
made as well, where the machine allows that. The network is the machine's. The process dies with
the one that started it.

Uses the standard library alone: it is run by its path, before there is anything else.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

CLONE_NEWNS, CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
PR_SET_PDEATHSIG = 1
CANNOT = 125
"""Exit code if the sandbox can't be made."""

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str, target: str, flags: int, kind: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None
    )
    _check(result, f"mount {source} at {target}")


def unshare() -> None:
    """A mount namespace of this process alone."""
    if os.geteuid() == 0:
        _check(_libc.unshare(CLONE_NEWNS), "unshare")
    else:
        user, group = os.geteuid(), os.getegid()
        _check(_libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", MS_REC | MS_PRIVATE)


def bind(source: str, target: str, keep: list[str]) -> None:
    """Shows `source` at `target`, which need not exist; `keep`: paths that stay to be seen even
    if they are below it (the program's own)."""
    target = os.path.realpath(target)
    held = [(path, os.open(path, os.O_PATH)) for path in keep if _is_below(path, target)]
    if not os.path.lexists(target):
        _make_place(target, is_folder=os.path.isdir(source))
    _mount(source, target, MS_BIND | MS_REC)
    for path, handle in held:
        os.makedirs(path, exist_ok=True)
        _mount(f"/proc/self/fd/{handle}", path, MS_BIND | MS_REC)
        os.close(handle)


def _is_below(path: str, folder: str) -> bool:
    return os.path.realpath(path).startswith(folder.rstrip("/") + "/")


def _make_place(target: str, *, is_folder: bool) -> None:
    """Makes a path to mount at: the folder above that exists is covered by one in memory that has
    the same entries."""
    above = os.path.dirname(target)
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    if above == "/":
        raise OSError(f"{target}: nothing can be mounted where the machine has no folder above")
    if os.stat(above).st_dev not in _in_memory:
        _cover(above)
    os.makedirs(target if is_folder else os.path.dirname(target), exist_ok=True)
    if not is_folder:
        Path(target).touch()


_in_memory: set[int] = set()
"""Devices of the folders that were covered."""


def _cover(folder: str) -> None:
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    through = f"/proc/self/fd/{handle}"
    entries = list(os.scandir(through))
    _mount("tmpfs", folder, 0, "tmpfs")
    for entry in entries:
        here, there = f"{folder}/{entry.name}", f"{through}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(there), here)
        elif entry.is_dir(follow_symlinks=False):
            os.mkdir(here)
            _mount(there, here, MS_BIND | MS_REC)
        else:
            Path(here).touch()
            _mount(there, here, MS_BIND)
    os.close(handle)
    _in_memory.add(os.stat(folder).st_dev)


def make_read_only() -> None:
    """Nothing can be written but to what was mounted; as far as the machine lets us."""
    flags = os.statvfs("/").f_flag & (MS_NOSUID | MS_NODEV | MS_NOEXEC)
    try:
        _mount("none", "/", MS_REMOUNT | MS_BIND | MS_RDONLY | flags)
    except OSError:
        return


def main() -> None:
    """Makes the sandbox and becomes the process."""
    told: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != told["parent"]:
        sys.exit(CANNOT)
    try:
        unshare()
        # The deepest last, /tmp behind all others: what is mounted may lie there.
        for source, target in sorted(told["mounts"], key=lambda m: (m[1] == "/tmp", m[1])):
            bind(source, target, told["keep"])
        if told["read_only"]:
            make_read_only()
    except OSError as error:
        print(f"sandbox: {error}", file=sys.stderr, flush=True)
        sys.exit(CANNOT)
    os.setsid()
    os.chdir(told["folder"] or "/")
    try:
        os.execvpe(told["words"][0], told["words"], told["variables"])
    except OSError as error:
        print(f"exec {told['words'][0]}: {error}", file=sys.stderr, flush=True)
        sys.exit(127)


if __name__ == "__main__":
    main()
