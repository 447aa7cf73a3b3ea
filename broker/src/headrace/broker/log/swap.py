"""Putting a cleaned segment in the place of those it was made from, so that a crash can't tear it.

    step                                                 what a crash just after it leaves
    1 write cleaned-<base>.log and sync it               files that nobody names: removed at open
    2 write the note `swap`, synced with the directory   note and file: the swap is finished at open
    3 remove the old indexes, rename the old segments    the same, whatever part of 3 was done: the
      to *.deleted, the last first, then rename          note says which segments go, and that the
      cleaned-<base>.log to <base>.log                   new one is in place if it is not there
    4 sync the directory, remove the note, sync again    the note alone: old segments that a machine
                                                         crash brought back are removed at open

A note is gone before the next one is written and before a truncation, so at open it tells of the
last thing done to those segments. Steps 1, 2 and 4 are for threads (or the child process); step 3
is a few renames on the loop's thread, where nobody reads in between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from headrace.broker.core.compaction import Cleaned
from headrace.broker.log import index as index_files
from headrace.broker.log.files import Disk
from headrace.broker.log.journal import frame, read_frames
from headrace.broker.log.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX, list_files

SWAP_FILE = "swap"
CLEANED_FILE = "cleaned"
"""In a log's directory: `core.compaction.Cleaned`. Without it everything counts as never cleaned,
which costs a pass and keeps tombstones longer."""

HOLES_FILE = "holes"
"""In a log's directory: offsets are missing between its batches, wherever they were cleaned."""

CLEANED_PREFIX = "cleaned-"


class SwapNote(msgspec.Struct, frozen=True, array_like=True):
    """`cleaned-<base>` replaces all segments with base offsets in [base_offset, end_offset)."""

    base_offset: int
    end_offset: int


def cleaned_stem(directory: str, base_offset: int) -> str:
    """Path without suffix of the files that a pass writes."""
    return os.path.join(directory, f"{CLEANED_PREFIX}{base_offset:020d}")


def write_note(disk: Disk, directory: str, note: SwapNote) -> None:
    """Step 2. Raises OSError."""
    data = frame(msgspec.msgpack.encode(note))
    disk.replace_file(os.path.join(directory, SWAP_FILE), data, sync=True)


def move_in(disk: Disk, directory: str, base_offset: int) -> None:
    """The last of step 3. Raises OSError when the log couldn't be renamed; an index that couldn't
    is made again when it is needed."""
    source, target = cleaned_stem(directory, base_offset), _stem(directory, base_offset)
    disk.rename(source + LOG_SUFFIX, target + LOG_SUFFIX)
    for suffix in (index_files.INDEX_SUFFIX, index_files.TIME_INDEX_SUFFIX):
        try:
            disk.rename(source + suffix, target + suffix)
        except OSError:
            index_files.remove(disk, target)


def end(disk: Disk, directory: str) -> None:
    """Step 4. Raises OSError; the note is to be removed before the segments are touched again."""
    disk.sync_directory(directory)
    disk.unlink(os.path.join(directory, SWAP_FILE))
    disk.sync_directory(directory)


def give_up(disk: Disk, directory: str, base_offsets: Sequence[int]) -> None:
    """Removes what steps 1 and 2 made, the note first; step 3 is either done or not begun. Raises
    OSError."""
    end(disk, directory)
    for base_offset in base_offsets:
        disk.unlink(cleaned_stem(directory, base_offset) + LOG_SUFFIX)
        index_files.remove(disk, cleaned_stem(directory, base_offset))


def finish(disk: Disk, directory: str) -> None:
    """At open: finishes the swap that a crash interrupted, and removes what passes left. Running
    it twice, or crashing in it, changes nothing. Raises OSError."""
    note = _read_note(disk, directory)
    names = {entry.name for entry in disk.list_directory(directory)}
    if note is not None:
        _finish(disk, directory, note, is_written=_log_name(note.base_offset) in names)
    for name in names:
        if name.startswith(CLEANED_PREFIX):
            disk.unlink(os.path.join(directory, name))


def _finish(disk: Disk, directory: str, note: SwapNote, *, is_written: bool) -> None:
    bases = [base for base, _size in list_files(disk, directory).segments]
    for base in reversed(bases):
        is_replaced = base > note.base_offset or is_written
        if note.base_offset <= base < note.end_offset and is_replaced:
            index_files.remove(disk, _stem(directory, base))
            if base > note.base_offset:
                disk.unlink(_stem(directory, base) + LOG_SUFFIX)
                disk.unlink(_stem(directory, base) + SNAPSHOT_SUFFIX)
    if is_written:
        move_in(disk, directory, note.base_offset)
    end(disk, directory)


def _read_note(disk: Disk, directory: str) -> SwapNote | None:
    """A note that isn't whole was never followed by step 3."""
    frames, _good = read_frames(disk.read_file(os.path.join(directory, SWAP_FILE)) or b"")
    try:
        return msgspec.msgpack.decode(frames[0], type=SwapNote) if frames else None
    except msgspec.DecodeError:
        return None


def _log_name(base_offset: int) -> str:
    return f"{CLEANED_PREFIX}{base_offset:020d}{LOG_SUFFIX}"


def _stem(directory: str, base_offset: int) -> str:
    return index_files.stem_of(directory, base_offset)


def load_cleaned(disk: Disk, directory: str) -> Cleaned:
    """What passes have done; nothing where the file is missing or damaged. Raises OSError."""
    frames, _good = read_frames(disk.read_file(os.path.join(directory, CLEANED_FILE)) or b"")
    try:
        return msgspec.msgpack.decode(frames[0], type=Cleaned) if frames else Cleaned()
    except msgspec.DecodeError:
        return Cleaned()


def save_cleaned(disk: Disk, directory: str, cleaned: Cleaned) -> None:
    """After the last swap of a pass is on the disk. Raises OSError."""
    data = frame(msgspec.msgpack.encode(cleaned))
    disk.replace_file(os.path.join(directory, CLEANED_FILE), data, sync=True)


def has_holes(disk: Disk, directory: str) -> bool:
    """Whether the log was ever cleaned, or copied from one that was."""
    return any(disk.exists(os.path.join(directory, name)) for name in (HOLES_FILE, CLEANED_FILE))


def note_holes(disk: Disk, directory: str) -> None:
    """Before the first hole is copied, and before `CLEANED_FILE` goes. Raises OSError."""
    disk.replace_file(os.path.join(directory, HOLES_FILE), b"", sync=True)


def forget(disk: Disk, directory: str) -> None:
    """Before a truncation: no swap is unfinished, and nothing counts as cleaned. Raises OSError."""
    paths = [os.path.join(directory, name) for name in (SWAP_FILE, CLEANED_FILE)]
    if any(disk.exists(path) for path in paths):
        for path in paths:
            disk.unlink(path)
        disk.sync_directory(directory)
