"""Framed append-only files: the manifest, the states, the epochs and the index files.

    frame: u32 length of payload | u32 CRC-32C of payload | payload

A reader takes frames up to the first that is incomplete or wrong: what was synced before a crash
is in front of it. A `Journal` on top of that is a file of MessagePack values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec
from crc32c import crc32c

from headrace.broker.log.files import Disk
from headrace.protocol.compression import Buffer

_FRAME = struct.Struct("<II")
FRAME_BYTES = _FRAME.size

T = TypeVar("T")


def frame(payload: Buffer) -> bytes:
    """`payload` with its length and checksum in front."""
    return _FRAME.pack(len(payload), crc32c(payload)) + bytes(payload)


def read_frames(data: Buffer) -> tuple[list[memoryview], int]:
    """The good frames from the start on, and how many bytes they take; the rest is torn. No frame
    is empty."""
    view, position, found = memoryview(data), 0, []
    while position + FRAME_BYTES <= len(view):
        length, checksum = _FRAME.unpack_from(view, position)
        payload = view[position + FRAME_BYTES : position + FRAME_BYTES + length]
        if not length or len(payload) < length or crc32c(payload) != checksum:
            break  # zeros, which a power cut leaves, would pass for empty frames
        found.append(payload)
        position += FRAME_BYTES + length
    return found, position


class Journal(Generic[T]):
    """A file of values of one type, one frame each."""

    def __init__(self, disk: Disk, path: str, kind: type[T]) -> None:
        self._disk = disk
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(kind)
        self.path = path
        self.torn_bytes = 0
        """Bytes behind the last good frame at the last `load`; they were cut."""

    def load(self) -> list[T]:
        """All values; a torn end is cut off the file, so that what is appended can be read."""
        data = self._disk.read_file(self.path) or b""
        frames, good = read_frames(data)
        self.torn_bytes = len(data) - good
        if self.torn_bytes:
            fd = self._disk.open(self.path)
            try:
                self._disk.truncate(fd, good)
            finally:
                self._disk.close(fd)
        return [self._decoder.decode(payload) for payload in frames]

    def append(self, values: Iterable[T], *, sync: bool) -> None:
        """Adds values at the end. Crash after: as `Disk.append_file`."""
        data = b"".join(frame(self._encoder.encode(value)) for value in values)
        if data:
            self._disk.append_file(self.path, data, sync=sync)

    def rewrite(self, values: Iterable[T], *, sync: bool) -> None:
        """Replaces the file. Crash after: as `Disk.replace_file`."""
        data = b"".join(frame(self._encoder.encode(value)) for value in values)
        self._disk.replace_file(self.path, data, sync=sync)
