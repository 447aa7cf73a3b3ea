"""Loopback addresses: one for each pod, service and node, none used twice in a row."""

from __future__ import annotations

import itertools
import os
import socket

LOCK_PORT = 9419
PER_BLOCK = 250


class Network:
    """127.X.0.0/16 for an X that nobody else on this machine has. Raises OSError if all are."""

    def __init__(self) -> None:
        start = os.getpid() % 200
        for step in range(200):
            self.prefix = f"127.{(start + step) % 200 + 30}"
            self._lock = socket.socket()
            try:
                self._lock.bind((f"{self.prefix}.255.254", LOCK_PORT))
                self._lock.listen()
                break
            except OSError:
                self._lock.close()
        else:
            raise OSError("no block of loopback addresses is free")
        self._numbers = itertools.count()

    def take(self) -> str:
        """An address that wasn't given out before (until 60,000 were)."""
        number = next(self._numbers) % (240 * PER_BLOCK)
        return f"{self.prefix}.{number // PER_BLOCK}.{number % PER_BLOCK + 1}"

    def close(self) -> None:
        """Others may have the block."""
        self._lock.close()
