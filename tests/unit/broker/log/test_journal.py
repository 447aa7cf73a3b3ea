"""A journal after a power cut: whatever the file system left behind its last good entry is cut."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace.broker.log.files import Disk
from headrace.broker.log.journal import Journal


class Entry(msgspec.Struct, array_like=True):
    """Anything."""

    number: int


@pytest.mark.parametrize("torn", [b"\0" * 8, b"\0" * 100, b"\x03", b"\x03\0\0\0\x01\x02\x03\x04ab"])
def test_what_a_power_cut_left_behind_the_last_entry_is_cut(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "journal"
    journal = Journal(Disk(), str(path), Entry)
    journal.append([Entry(1), Entry(2)], sync=True)
    path.write_bytes(path.read_bytes() + torn)
    assert journal.load() == [Entry(1), Entry(2)]
    assert journal.torn_bytes == len(torn)
    journal.append([Entry(3)], sync=False)
    assert journal.load() == [Entry(1), Entry(2), Entry(3)]
