"""Runs inside a pod of the cluster: writes and reads while a scenario breaks things, then judges.

    GET  /           how far it is
    POST /stop       ends the load, reads everything back, answers the verdict
    GET  /verdict    the verdict, once there is one

By environment: BOOTSTRAP, TOPIC, PARTITIONS, SEED.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from aiohttp import web

from testkit import history as history_module
from testkit.load import Load

PORT = 8080


class Work:
    """One load, its task and its verdict."""

    def __init__(self) -> None:
        self.load = Load(
            os.environ["BOOTSTRAP"],
            os.environ["TOPIC"],
            int(os.environ["PARTITIONS"]),
            writers=int(os.environ.get("WRITERS", "2")),
        )
        self.verdict: dict[str, Any] | None = None
        self.stop = asyncio.Event()
        self.task = asyncio.ensure_future(self.run())

    async def run(self) -> None:
        """From start to verdict."""
        began = time.monotonic()
        try:
            async with self.load.running(int(os.environ.get("SEED", "1"))):
                await self.stop.wait()
                ended = time.monotonic()
            anomalies = history_module.check(self.load.history)
            found: dict[str, Any] = {
                "anomalies": [f"{each.kind}: {each.detail}" for each in anomalies[:20]],
                "longest_pause_s": self.load.longest_pause_s(began, ended),
            }
        except Exception as error:
            found = {"failure": repr(error)}
        self.verdict = {
            "acknowledged": len(self.load.history.acknowledged),
            "errors": [f"{type(each).__name__}: {each}" for each in self.load.errors],
            **found,
        }

    async def progress(self, _: web.Request) -> web.Response:
        """How many records were acknowledged."""
        acknowledged = len(self.load.history.acknowledged)
        errors = [repr(each) for each in self.load.errors]
        return web.json_response({"acknowledged": acknowledged, "errors": errors})

    async def end(self, _: web.Request) -> web.Response:
        """Begins the end."""
        self.stop.set()
        return web.json_response({})

    async def judged(self, _: web.Request) -> web.Response:
        """The verdict, or 404."""
        if self.verdict is None:
            return web.json_response({}, status=404)
        return web.json_response(self.verdict)


async def main() -> None:
    """Serves until killed."""
    work = Work()
    app = web.Application()
    app.router.add_get("/", work.progress)
    app.router.add_post("/stop", work.end)
    app.router.add_get("/verdict", work.judged)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, os.environ["LISTEN"], PORT).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
