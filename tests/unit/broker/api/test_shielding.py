"""What was begun for a client who hung up ends before the logs are closed."""

from __future__ import annotations

import asyncio

import pytest

from headrace.broker.api.shielding import end_all, to_the_end


async def test_a_stop_waits_for_what_was_begun_and_ends_what_hangs() -> None:
    done: list[str] = []

    async def work(seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            done.append("done")
        except asyncio.CancelledError:
            done.append("ended")
            raise

    for seconds in (0.05, 60):
        request = asyncio.create_task(to_the_end(work(seconds)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
    assert done == []
    await end_all(0.2)
    assert done == ["done", "ended"]
