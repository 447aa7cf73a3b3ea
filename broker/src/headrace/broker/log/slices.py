"""A slice of the log on its way out: where the bytes are, and how to read them without blocking.

Reading asks the page cache first (RWF_NOWAIT) and a thread only for what isn't there. A slice
keeps its file from being unlinked, not from being cut: every read is checked afterwards against
the file's generation, so bytes written after a truncation never go out under the old epoch
(replication.md H22).
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from headrace.broker.core.batch_cleaning import empty_batch
from headrace.broker.log.files import FileCache, LogFile
from headrace.broker.log.segment import Span
from headrace.protocol.compression import Buffer
from headrace.protocol.errors import Conflict, PartitionOffline

OFFSETS_MAX = 1 << 32
"""Offsets that one batch can cover."""

PIECE_BYTES = 256 << 10
"""Bytes read and sent at once (measured: larger pieces are slower, docs/performance.md)."""


class LogSlice:
    """Whole batches of one segment. Close it when sent (`with` does); forgetting to only keeps a
    deleted file's space until the object is collected."""

    __slots__ = (
        "_closed", "_file", "_files", "_generation", "base_offset", "length", "next_offset",
        "position",
    )  # fmt: skip

    def __init__(self, files: FileCache, file: LogFile, span: Span) -> None:
        self._files = files
        self._file = file
        self._generation = file.generation
        self._closed = False
        self.position = span.position
        self.length = span.length
        """Bytes to send."""
        self.base_offset = span.base_offset
        """Offset of the first record of the first batch (may be below the offset asked for)."""
        self.next_offset = span.next_offset
        """Offset after the last batch."""
        files.add_reader(file)

    def read_nowait(self) -> Buffer | None:
        """All bytes if the page cache has them, else None. Never blocks.

        Raises:
            Conflict: the log was truncated meanwhile; locate again.
            PartitionOffline: the disk refused to read.
        """
        self._check_generation()
        return self._piece_nowait(self.position, self.length)

    async def read(self) -> Buffer:
        """All bytes, those that are not in the page cache by a thread. Raises as `read_nowait`."""
        return await self._piece(self.position, self.length)

    async def pieces(self, piece_bytes: int = PIECE_BYTES) -> AsyncIterator[Buffer]:
        """The bytes in pieces of `piece_bytes` (the last one shorter). Raises as `read_nowait`."""
        end = self.position + self.length
        for position in range(self.position, end, piece_bytes):
            yield await self._piece(position, min(piece_bytes, end - position))

    def cut(self, other: LogSlice) -> None:
        """Ends this slice with `other`, a slice of one batch inside it."""
        self.length = other.position + other.length - self.position
        self.next_offset = other.next_offset

    def cut_before(self, other: LogSlice) -> None:
        """Ends this slice before `other`, a slice that begins inside it."""
        self.length = other.position - self.position
        self.next_offset = other.base_offset

    def close(self) -> None:
        """Lets go of the file; may be called twice."""
        if not self._closed:
            self._closed = True
            self._files.drop_reader(self._file)

    def __enter__(self) -> LogSlice:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    def _check_generation(self) -> None:
        if self._file.generation != self._generation:
            raise Conflict("the log was truncated while it was being read; fetch again")

    def _piece_nowait(self, position: int, size_bytes: int) -> Buffer | None:
        try:
            fd = self._files.fd(self._file)
            data = self._files.disk.pread_nowait(fd, size_bytes, position)
        except OSError as error:
            raise _unreadable(error) from error
        return data if data is not None and len(data) == size_bytes else None

    async def _piece(self, position: int, size_bytes: int) -> Buffer:
        self._check_generation()
        data = self._piece_nowait(position, size_bytes)
        if data is not None:
            return data
        files, file = self._files, self._file
        try:
            fd = files.pin(file)
            try:
                cold = await files.workers.run(files.disk.pread, fd, size_bytes, position)
            finally:
                files.unpin(file)
        except OSError as error:
            raise _unreadable(error) from error
        self._check_generation()
        if len(cold) != size_bytes:
            raise PartitionOffline(f"{file.path} is shorter than its batches; is it being edited?")
        return cold


class EmptiedSlice(LogSlice):
    """A batch without records, made up for readers: in the place of batches that must not be handed
    out any more, when nothing newer is there. So every client goes on behind them."""

    __slots__ = ("_data", "_epoch")

    def __init__(self, files: FileCache, offset: int, next_offset: int, leader_epoch: int) -> None:
        span = Span(0, 0, offset, min(next_offset, offset + OFFSETS_MAX))
        super().__init__(files, LogFile(""), span)
        self._epoch = leader_epoch
        self._end_at(self.next_offset)

    def _end_at(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self._data = empty_batch(
            self.base_offset, next_offset=next_offset, leader_epoch=self._epoch
        )
        self.length = len(self._data)

    def cut(self, other: LogSlice) -> None:
        """As `LogSlice.cut`."""
        self._end_at(min(other.next_offset, self.next_offset))

    def cut_before(self, other: LogSlice) -> None:
        """As `LogSlice.cut_before`."""
        self._end_at(min(max(other.base_offset, self.base_offset + 1), self.next_offset))

    def _piece_nowait(self, position: int, size_bytes: int) -> Buffer:
        return self._data[position : position + size_bytes]


def _unreadable(error: OSError) -> PartitionOffline:
    return PartitionOffline(f"a log file can't be read: {error}")
