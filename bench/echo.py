"""What the machine itself does to a round trip: a bare TCP echo between two processes, 500 times a
second. Beside a busy machine it tells how much of a broker's delay is waiting for a core.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

SIZE_BYTES = 100
RATE = 500


async def _serve() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(await reader.readexactly(SIZE_BYTES))
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _measure(port: int, seconds: float) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    took_s: list[float] = []
    due = time.perf_counter()
    end = due + seconds
    while due < end:
        due += 1 / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        started = time.perf_counter()
        writer.write(bytes(SIZE_BYTES))
        await reader.readexactly(SIZE_BYTES)
        took_s.append(time.perf_counter() - started)
    writer.close()
    return sorted(took_s)


async def echo_latency(seconds: float) -> dict[str, float]:
    """Percentiles of the round trip in ms."""
    server = subprocess.Popen([sys.executable, __file__], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        took_s = await _measure(int(server.stdout.readline()), seconds)
    finally:
        server.kill()
        server.wait()
    return {
        "p50_ms": 1000 * took_s[len(took_s) // 2],
        "p99_ms": 1000 * took_s[len(took_s) * 99 // 100],
        "max_ms": 1000 * took_s[-1],
    }


if __name__ == "__main__":
    asyncio.run(_serve())
