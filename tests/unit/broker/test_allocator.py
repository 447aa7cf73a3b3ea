"""Memory of request bodies is reused, not fetched from the system page by page."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BODY_BYTES = 1 << 20
PIECE_BYTES = 256 << 10
BODIES = 200
PAGES = BODY_BYTES // 4096

PROGRAM = f"""
import resource, sys
from headrace.broker.allocator import keep_freed_memory

assert keep_freed_memory()

def receive():
    pieces = [b"x" * {PIECE_BYTES} for _ in range({BODY_BYTES // PIECE_BYTES})]
    return b"".join(pieces)

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

receive()
before = faults()
for _ in range({BODIES}):
    receive()
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc")
def test_a_body_takes_the_memory_of_the_one_before_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, check=True
    )
    assert int(done.stdout) < PAGES * BODIES / 10
