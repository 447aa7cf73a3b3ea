"""A cut that doesn't cut would make every test of cuts pass."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from testkit.namespaces import Net

PORT = 8000
SERVE = (
    "import socket\n"
    f"s = socket.create_server(('', {PORT}))\n"
    "print('up', flush=True)\n"
    "while True: s.accept()[0].close()\n"
)


def reaches(prefix: tuple[str, ...], host: str) -> bool:
    """Whether a connection is made, within half a second."""
    code = f"import socket; socket.create_connection(({host!r}, {PORT}), timeout=0.5)"
    done = subprocess.run([*prefix, sys.executable, "-c", code], check=False, capture_output=True)
    return done.returncode == 0


@pytest.mark.skipif(not Net.is_allowed(), reason="network namespaces need root")
def test_a_cut_is_silent_and_heals() -> None:
    with Net(3).standing() as net:
        server = subprocess.Popen(
            [*net.prefix(1), sys.executable, "-c", SERVE], stdout=subprocess.PIPE
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"up\n"
            target = net.hosts[1]
            assert reaches(net.prefix(0), target)
            net.cut(0, [1])
            began = time.monotonic()
            assert not reaches(net.prefix(0), target)
            assert time.monotonic() - began >= 0.5, "nothing is refused, nothing comes"
            assert reaches(net.prefix(2), target), "the others aren't cut"
            net.heal()
            assert reaches(net.prefix(0), target)
            net.cut(1, [0], one_way=True)
            assert not reaches(net.prefix(0), target), "the answers are lost"
            net.heal()
            assert reaches((), target)
            net.unplug(1)
            assert not reaches((), target)
        finally:
            server.kill()
            server.communicate()
