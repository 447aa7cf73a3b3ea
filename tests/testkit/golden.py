"""Reads tests/golden/: bytes in hexadecimal, with remarks after `#`."""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def golden(name: str) -> bytes:
    """The bytes of a golden file, by its name without the ending."""
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()
    return bytes.fromhex("".join(line.partition("#")[0] for line in lines))
