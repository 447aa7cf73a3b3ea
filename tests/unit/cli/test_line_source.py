"""Standard input is read in pieces, without waiting for its end and without growing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from headrace.cli import line_source
from headrace.cli.line_format import LineFault
from headrace.cli.line_source import CHUNK_BYTES, CHUNKS_MAX, LineSource


async def test_lines_come_as_they_are_written_and_the_last_may_lack_its_newline() -> None:
    read, write = os.pipe()
    source = LineSource(read).lines()
    os.write(write, b"one\ntw")
    assert await anext(source) == [b"one"]
    os.write(write, b"o\n\nend")
    assert await anext(source) == [b"two", b""]
    os.close(write)
    assert await anext(source) == [b"end"]
    with pytest.raises(StopAsyncIteration):
        await anext(source)
    os.close(read)


async def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)))
    with path.open("rb") as file:
        source = LineSource(file.fileno())
        lines = [line async for found in source.lines() for line in found]
    assert len(lines) == 100_000
    assert lines[-1] == b"line 99999"
    assert source.bytes_read == path.stat().st_size


async def test_no_more_is_read_ahead_than_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * 99 + b"\n" + bytes(CHUNK_BYTES * CHUNKS_MAX * 3))
    with path.open("rb") as file:
        source = LineSource(file.fileno())
        assert await anext(source.lines()) == [b"x" * 99]
        await asyncio.sleep(0.1)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) <= CHUNK_BYTES * (CHUNKS_MAX + 1)


async def test_a_line_longer_than_any_batch_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 1_000)
    path = tmp_path / "long"
    path.write_bytes(b"ok\n" + b"x" * 2_000)
    with path.open("rb") as file:
        source = LineSource(file.fileno()).lines()
        assert await anext(source) == [b"ok"]
        with pytest.raises(LineFault, match="longer than"):
            await anext(source)


async def test_input_that_cannot_be_read_is_a_fault(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(LineFault, match="can't be read"):
        await anext(LineSource(folder).lines())
    os.close(folder)
