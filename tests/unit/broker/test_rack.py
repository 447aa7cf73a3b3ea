"""The rack that a file tells, perhaps a while after the start."""

from __future__ import annotations

import asyncio
from pathlib import Path

from headrace.broker.rack import rack_of


async def test_the_setting_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "rack").write_text("b")
    assert await rack_of("a", str(tmp_path / "rack")) == "a"


async def test_no_rack_and_no_file_is_no_rack() -> None:
    assert await rack_of("", "") is None


async def test_a_file_that_is_empty_at_first_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "rack"
    file.write_text("")
    asking = asyncio.create_task(rack_of("", str(file), wait_s=30))
    await asyncio.sleep(0.05)
    assert not asking.done()
    file.write_text("zone-1\n")
    assert await asking == "zone-1"


async def test_a_file_that_stays_missing_ends_without_a_rack(tmp_path: Path) -> None:
    assert await rack_of("", str(tmp_path / "rack"), wait_s=0.5) is None
