"""The process that cleans logs: what runs in it, and how the broker talks with it.

    broker -> child   Job, then an empty frame after each group is in place     (stdin)
    child -> broker   Group, Group, ..., Done or Failed                         (stdout)

Frames are a u32 length and MessagePack. One child works off one job after the other, at a low
priority, and ends when its stdin does: however the broker dies, no child outlives it. Its memory is
its own: the map of keys is gone with it.
"""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import struct
import sys
import threading
import time
from collections.abc import AsyncIterator
from typing import BinaryIO

import msgspec

from headrace.broker.log.compactor import Done, Group, Job, Pace, compact
from headrace.broker.log.files import Disk
from headrace.broker.log.index import BrokenBatch

NICENESS = 10
"""Added to the broker's own: a pass takes the CPU that nobody else wants."""

FRAME_BYTES_MAX = 64 << 20
"""No frame is near that: a longer one is rubbish on the pipe."""


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """The pass ended early."""

    reason: str


class CompactionError(Exception):
    """A pass that couldn't be finished; the log is as it was, or a part of it is cleaned."""


_LENGTH = struct.Struct("<I")
_encoder = msgspec.msgpack.Encoder()
_jobs = msgspec.msgpack.Decoder(Job)
_answers = msgspec.msgpack.Decoder(Group | Done | Failed)


class CompactionProcess:
    """The broker's side: starts the child at the first job, and again when it died."""

    def __init__(self) -> None:
        self._child: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The child's number, None when there is none."""
        return None if self._child is None else self._child.pid

    async def run(self, job: Job) -> AsyncIterator[Group | Done]:
        """The job's groups, each to be put in place before the next is asked for, then `Done`.

        Raises:
            CompactionError: the child failed or died.
        """
        child = self._child = self._child or await self._start()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(_framed(job))
            while True:
                await child.stdin.drain()
                head = await child.stdout.readexactly(_LENGTH.size)
                answer = _answers.decode(await child.stdout.readexactly(_length(head)))
                if isinstance(answer, Failed):
                    raise CompactionError(answer.reason)
                yield answer
                if isinstance(answer, Done):
                    return
                child.stdin.write(_LENGTH.pack(0))
        except (OSError, asyncio.IncompleteReadError, msgspec.DecodeError) as error:
            status = await self.stop()
            raise CompactionError(f"its process ended (status {status})") from error

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "headrace.broker.log.compaction_process",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise CompactionError(f"no process could be started: {error}") from error

    async def stop(self) -> int | None:
        """Kills the child, if there is one, and waits; a pass that it was at is lost."""
        child, self._child = self._child, None
        if child is None:
            return None
        if child.returncode is None:
            try:
                child.kill()
            except ProcessLookupError:
                pass
        return await child.wait()


def _framed(message: msgspec.Struct) -> bytes:
    data = _encoder.encode(message)
    return _LENGTH.pack(len(data)) + data


def _length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > FRAME_BYTES_MAX:
        raise OSError(f"a frame of {length} bytes")
    return length


# -------------------------------------------------------------------- in the child


class Throttle:
    """Lets so many bytes a second through. Never catches up on what it missed for long."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._due = time.monotonic()
        self._sleeping = threading.Event()

    def pace(self, size_bytes: int) -> None:
        """After reading or writing so many bytes: waits until they were due."""
        if self._rate <= 0:
            return
        now = time.monotonic()
        self._due = max(self._due, now - 1.0) + size_bytes / self._rate
        if self._due > now:
            self._sleeping.wait(self._due - now)


def _listen(source: BinaryIO, frames: queue.SimpleQueue[bytes]) -> None:
    """Passes the broker's frames on; its end is this process' end, whatever it is at."""
    while True:
        head = source.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            os._exit(0)
        frames.put(source.read(_length(head)))


def _work(job: Job, frames: queue.SimpleQueue[bytes], answers: BinaryIO, pace: Pace) -> None:
    try:
        for step in compact(Disk(), job, pace):
            _answer(step, answers)
            if isinstance(step, Group):
                frames.get()
    except (BrokenBatch, OSError) as error:
        _answer(Failed(str(error)), answers)


def _answer(message: msgspec.Struct, answers: BinaryIO) -> None:
    answers.write(_framed(message))
    answers.flush()


def main() -> None:
    """Works off jobs until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the broker
    os.nice(NICENESS)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, frames), daemon=True).start()
    while True:
        job = _jobs.decode(frames.get())
        _work(job, frames, sys.stdout.buffer, Throttle(job.bytes_per_second).pace)


if __name__ == "__main__":
    main()
