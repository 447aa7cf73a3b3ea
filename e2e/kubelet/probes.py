"""Probes: is a container started, alive, ready? One task a probe, verdicts to a callback."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from kubelet.client import Json


@dataclass(slots=True)
class Streak:
    """Counts answers until they make a verdict. Pure."""

    failures_needed: int
    successes_needed: int
    failures: int = 0
    successes: int = 0

    def verdict(self, ok: bool) -> bool | None:
        """True or False once enough in a row say so."""
        self.successes = self.successes + 1 if ok else 0
        self.failures = 0 if ok else self.failures + 1
        if self.successes >= self.successes_needed:
            return True
        return False if self.failures >= self.failures_needed else None


def port_of(container: Json, port: int | str) -> int:
    """A probe's port, by number or by name."""
    if isinstance(port, int):
        return port
    named = {p.get("name"): int(p["containerPort"]) for p in container.get("ports") or ()}
    return named[port]


async def ask(session: aiohttp.ClientSession, container: Json, probe: Json, address: str) -> bool:
    """One try. Kinds other than HTTP and TCP always succeed."""
    timeout_s = float(probe.get("timeoutSeconds", 1))
    try:
        async with asyncio.timeout(timeout_s):
            if found := probe.get("httpGet"):
                port = port_of(container, found["port"])
                url = f"http://{address}:{port}{found.get('path', '/')}"
                async with session.get(url, allow_redirects=False) as response:
                    return 200 <= response.status < 400
            if found := probe.get("tcpSocket"):
                port = port_of(container, found["port"])
                _, writer = await asyncio.open_connection(address, port)
                writer.close()
            return True
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


async def watch(
    session: aiohttp.ClientSession,
    container: Json,
    probe: Json,
    address: str,
    factor: float,
    tell: Callable[[bool], None],
) -> None:
    """Asks again and again; tells each verdict. `factor`: so many times as often, and a failure
    takes as long as it does anywhere."""
    failures = round(probe.get("failureThreshold", 3) * factor)
    streak = Streak(failures, probe.get("successThreshold", 1))
    period_s = float(probe.get("periodSeconds", 10)) / factor
    await asyncio.sleep(float(probe.get("initialDelaySeconds", 0)) / factor)
    while True:
        verdict = streak.verdict(await ask(session, container, probe, address))
        if verdict is not None:
            tell(verdict)
        await asyncio.sleep(period_s)
