"""Connections that a process keeps: one client for each cluster and way of reaching it.

For readers that come and go by the hundred in one process (Spark's tasks, `headrace.sdk.arrow`): a
new one finds the sockets open and the leaders known. Everything lives on the background loop of
`headrace.sdk.sync`; a forked child starts empty and leaves its parent's sockets alone.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.protocol.errors import HeadraceError, InvalidConfig
from headrace.sdk import sync
from headrace.sdk.client import Client
from headrace.sdk.cluster_view import ClusterView
from headrace.sdk.settings import ConnectionSettings, bootstrap_urls


@dataclass(frozen=True)
class TokenFile:
    """Credentials from a file that somebody else renews (a projected service account token): read
    for every request, so that a token is never older than the file. May be pickled; the token
    itself never is."""

    path: str

    def __call__(self) -> Mapping[str, str]:
        """The header.

        Raises:
            InvalidConfig: the file can't be read, or is empty.
        """
        try:
            token = Path(self.path).read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfig(f"the token file {self.path} can't be read: {error}") from error
        if not token:
            raise InvalidConfig(f"the token file {self.path} is empty")
        return {"Authorization": f"Bearer {token}"}


@dataclass(frozen=True)
class FixedHeaders:
    """Credentials that are always the same headers, in a form that can be looked up by."""

    headers: tuple[tuple[str, str], ...]

    def __call__(self) -> Mapping[str, str]:
        """The headers."""
        return dict(self.headers)


@dataclass(frozen=True, slots=True)
class Connection:
    """A client and what it knows of leaders. Its methods run on the background loop only."""

    client: Client
    view: ClusterView

    async def close(self) -> None:
        """Gives up all sockets."""
        await self.view.close()
        await self.client.close()


_Key = tuple[tuple[str, ...], ConnectionSettings]
_lock = threading.Lock()
_pool: dict[_Key, Connection] = {}
_parents: list[dict[_Key, Connection]] = []
"""Pools that came along through a fork: never used, and never collected, because collecting a
session would touch the event loop that both processes share."""


def connection(bootstrap: str, settings: ConnectionSettings) -> Connection:
    """The process's connection to a cluster, made on first use and kept until the process ends.

    Raises:
        InvalidConfig: the bootstrap address can't be one.
    """
    if isinstance(settings.credentials, Mapping):
        settings = replace(
            settings, credentials=FixedHeaders(tuple(sorted(settings.credentials.items())))
        )
    key = (bootstrap_urls(bootstrap), settings)
    with _lock:
        found = _pool.get(key)
        if found is None:
            client = Client(key[0], settings)
            found = _pool[key] = Connection(client, ClusterView(client))
            if len(_pool) == 1:
                sync.run(_nothing())  # Plans the loop's end before ours, so that it comes after.
                atexit.register(_close_all)
        return found


async def _nothing() -> None:
    pass


def _close_all() -> None:
    with _lock:
        found = list(_pool.values())
        _pool.clear()
    for each in found:
        try:
            sync.run(each.close())
        except (HeadraceError, OSError, RuntimeError):
            pass  # The process ends; the kernel closes what is left.


def _after_fork() -> None:
    global _lock, _pool
    _lock = threading.Lock()  # The parent's may have been held by a thread that isn't here.
    _parents.append(_pool)
    _pool = {}


os.register_at_fork(after_in_child=_after_fork)
