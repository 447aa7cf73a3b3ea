"""The segments of one log: which files it consists of, in order. The one place that changes that.

Older segments are listed at first need, so that opening a log reads nothing; the last one, active,
is always known. Knows no bounds of the log (state.py) and decides nothing: appending begins the
next segment, truncation takes from the end, retention from the start, cleaning replaces.

Bytes that go make void what threads and readers found before: `generation` tells them.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.broker.log import index as index_files
from headrace.broker.log.checkpoint import Checkpoint
from headrace.broker.log.context import LogContext
from headrace.broker.log.index import SegmentIndex
from headrace.broker.log.segment import LOG_SUFFIX, Segment, list_files


class TornSwap(Exception):
    """Segments have lost their names; what is needed to put that right at open is on the disk."""


class SegmentList:
    """A log's segments, base offsets ascending.

    Invariants: `active` is the last one and the only one written to; `size_bytes` is the sum of
    all; `rolled` are some of the older ones.
    """

    __slots__ = (
        "_context", "_older", "_older_count", "active", "directory", "generation", "hints",
        "rolled", "size_bytes",
    )  # fmt: skip

    def __init__(
        self, directory: str, checkpoint: Checkpoint, context: LogContext, interval_bytes: int
    ) -> None:
        """As `checkpoint` describes them; reads nothing."""
        self._context = context
        self.directory = directory
        self.size_bytes = checkpoint.size_bytes
        self.active = Segment(directory, checkpoint.active_base, checkpoint.active_bytes)
        self.active.first_append_ms = checkpoint.active_first_append_ms
        self.active.last_append_ms = checkpoint.last_append_ms
        self.active.index = SegmentIndex(
            interval_bytes=interval_bytes,
            start_position=checkpoint.active_bytes,
            max_timestamp_ms=checkpoint.active_max_timestamp_ms,
        )
        self._older: list[Segment] | None = None if checkpoint.older_segments else []
        self._older_count = checkpoint.older_segments
        self.rolled: list[Segment] = []
        """Closed, and not synced since."""
        self.generation = 0
        """Raised before bytes are cut off or moved."""
        self.hints: dict[int, tuple[Segment, int]] = {}
        """Where recent reads ended: offset to position. The reader's; void when segments go."""

    @property
    def older_count(self) -> int:
        """How many segments lie before the active one, without listing them."""
        return self._older_count

    def known(self) -> list[Segment]:
        """The segments that this list has objects of, so those that may be open."""
        return [*(self._older or ()), self.active]

    def older(self, start_offset: int) -> list[Segment]:
        """All but the active segment, listed at first need; then those that a deletion which a
        crash undid left wholly below `start_offset` go. Not to be changed by the caller."""
        if self._older is None:
            self._older = self._listed(start_offset)
            self._older_count = len(self._older)
        return self._older

    def _listed(self, start_offset: int) -> list[Segment]:
        found = [
            Segment(self.directory, base_offset, size_bytes)
            for base_offset, size_bytes in list_files(
                self._context.files.disk, self.directory
            ).segments
            if base_offset < self.active.base_offset
        ]
        while len(found) > 1 and found[1].base_offset <= start_offset:
            self._context.files.discard(found.pop(0).file)
        return found

    def index_of(self, segment: Segment) -> SegmentIndex | None:
        """The segment's index if it is in memory; the active one's may lack its first rows."""
        return segment.index or self._context.indexes.get(segment.stem)

    def void(self) -> None:
        """Bytes are about to go: what threads and readers found is void."""
        self.generation += 1
        self.hints.clear()

    def begin(self, following: Segment) -> None:
        """Closes the active segment and goes on with `following`, whose file is there."""
        closed = self.active
        if closed.index is not None and closed.index.start_position == 0:
            self._context.indexes.put(closed.stem, closed.index)
        closed.index = None
        self.rolled.append(closed)
        if self._older is not None:
            self._older.append(closed)
        self._older_count += 1
        self.active = following

    def synced(self, closed: tuple[Segment, ...]) -> None:
        """These closed segments are on the disk."""
        self.rolled = [segment for segment in self.rolled if segment not in closed]

    def drop_active(self) -> None:
        """Removes the last segment; the one before it becomes the active one. The older ones must
        have been listed."""
        assert self._older is not None
        dropped = self.active
        self.active = self._older.pop()
        self._older_count -= 1
        self.rolled = [
            segment
            for segment in self.rolled
            if segment is not dropped and segment is not self.active
        ]
        self._remove(dropped)

    def shrink_active(self, size_bytes: int) -> None:
        """The active segment's file was cut to `size_bytes`, a batch boundary."""
        self.size_bytes -= self.active.size_bytes - size_bytes
        self.active.size_bytes = size_bytes

    def drop_below(self, base_offset: int) -> int:
        """Removes the older segments that begin below `base_offset`, oldest first, so that a crash
        leaves no hole; answers how many. They must have been listed."""
        assert self._older is not None
        count = sum(segment.base_offset < base_offset for segment in self._older)
        gone, self._older = self._older[:count], self._older[count:]
        self._older_count = len(self._older)
        self.hints.clear()
        self.rolled = [segment for segment in self.rolled if segment not in gone]
        for segment in gone:
            self._remove(segment)
        return count

    def replace(self, old: list[Segment], new: Segment, move_in: Callable[[], None]) -> None:
        """Puts `new` in the place of `old`, older ones in a row that the list has; `move_in` gives
        its file the name. Readers of the old ones go on with those.

        Raises:
            OSError: everything is as before.
            TornSwap: the disk refused that too.
        """
        assert self._older is not None
        files = self._context.files
        place = self._older.index(old[0])
        self.void()
        for segment in old:
            self._context.indexes.forget(segment.stem)
            index_files.remove(files.disk, segment.stem)
        aside: list[Segment] = []
        try:
            for segment in reversed(old):
                files.set_aside(segment.file)
                aside.append(segment)
            move_in()
        except OSError:
            self._put_back(aside)
            raise
        self._older[place : place + len(old)] = [new]
        self._older_count = len(self._older)
        self.size_bytes += new.size_bytes - sum(segment.size_bytes for segment in old)
        for segment in old:
            files.drop(segment.file)

    def _put_back(self, aside: list[Segment]) -> None:
        files = self._context.files
        try:
            for segment in reversed(aside):
                files.put_back(segment.file, segment.stem + LOG_SUFFIX)
        except OSError as error:
            raise TornSwap(f"segments can't be renamed, nor renamed back: {error}") from error

    def remove_all(self) -> None:
        """Removes all files, last segment first. Crash within: a prefix is left. `start_over`
        follows. Raises OSError."""
        for segment in reversed(self.known()):
            segment.file.generation += 1
            self._remove(segment)

    def start_over(self, offset: int, interval_bytes: int) -> None:
        """After `remove_all`: one empty segment, its file not made yet."""
        self.rolled, self._older, self._older_count = [], [], 0
        self.active = Segment(self.directory, offset)
        self.active.index = SegmentIndex(interval_bytes=interval_bytes)
        self.size_bytes = 0

    def _remove(self, segment: Segment) -> None:
        self.size_bytes -= segment.size_bytes
        self._context.indexes.forget(segment.stem)
        index_files.remove(self._context.files.disk, segment.stem)
        self._context.files.discard(segment.file)

    def release(self) -> None:
        """Closes all files and forgets the indexes; saves nothing."""
        for segment in self.known():
            self._context.files.close(segment.file)
            self._context.indexes.forget(segment.stem)


def place_of(older: list[Segment], offset: int) -> int:
    """Place in the list of the segment that holds `offset`."""
    low, high = 0, len(older)
    while low < high:
        middle = (low + high) // 2
        if older[middle].base_offset <= offset:
            low = middle + 1
        else:
            high = middle
    return max(low - 1, 0)
