"""Small and read-only file systems for tests, where the system lets us mount some."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _mount(*arguments: str) -> str:
    """Why it failed, or nothing."""
    try:
        done = subprocess.run(["mount", *arguments], capture_output=True, check=False, text=True)
    except OSError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


@contextmanager
def small_volume(path: Path, *, size_bytes: int) -> Iterator[Path]:
    """A file system of that size at `path`; skips the test where this user may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    failure = _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "headrace-test", str(path))
    if failure:
        pytest.skip(f"needs a file system of its own to fill, mounting isn't allowed: {failure}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def make_read_only(path: Path) -> None:
    """Nothing can be written to the small volume from now on, not even by root."""
    assert _mount("-o", "remount,ro", str(path)) == ""


def make_writable(path: Path) -> None:
    """Takes `make_read_only` back."""
    assert _mount("-o", "remount,rw", str(path)) == ""


class Ballast:
    """A file that takes up all the room of a volume until it is dropped."""

    def __init__(self, volume: Path) -> None:
        self._path = volume / "ballast"

    def fill(self) -> None:
        """Takes what room is left."""
        with self._path.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def drop(self) -> None:
        """Gives it back."""
        self._path.unlink()
