"""A network namespace for each broker, so that the kernel cuts them off: where root allows.

A bridge joins them to the test's own network. A cut between two is made by a wrong neighbour
address on either side: packets leave and nobody gets them, in one direction or both, as in a
switch that has gone wrong. Names and addresses are drawn, so that test runs don't meet.
"""

from __future__ import annotations

import contextlib
import secrets
import shutil
import subprocess
from collections.abc import Iterator

NOBODY = "02:00:00:00:00:01"
"""A hardware address that nobody has."""


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Net:
    """A bridge with one namespace a member."""

    def __init__(self, members: int) -> None:
        mark = secrets.token_hex(3)
        self._bridge = f"hr{mark}"
        self._subnet = f"10.{secrets.randbelow(100) + 100}.{secrets.randbelow(250) + 1}"
        self._names = [f"hr{mark}n{index}" for index in range(members)]
        self.hosts = [f"{self._subnet}.{index + 1}" for index in range(members)]

    @staticmethod
    def is_allowed() -> bool:
        """Whether this process may make namespaces here."""
        if shutil.which("ip") is None or shutil.which("unshare") is None:
            return False
        probe = ["unshare", "--net", "ip", "link", "add", "probe", "type", "bridge"]
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0

    @contextlib.contextmanager
    def standing(self) -> Iterator[Net]:
        """Makes it, and takes it away afterwards."""
        try:
            _ip("link", "add", self._bridge, "type", "bridge")
            _ip("addr", "add", f"{self._subnet}.254/24", "dev", self._bridge)
            _ip("link", "set", self._bridge, "up")
            for name, host in zip(self._names, self.hosts, strict=True):
                self._add(name, host)
            yield self
        finally:
            for name in self._names:
                with contextlib.suppress(subprocess.CalledProcessError):
                    _ip("netns", "del", name)
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("link", "del", self._bridge)

    def _add(self, name: str, host: str) -> None:
        _ip("netns", "add", name)
        _ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", name, "master", self._bridge, "up")
        _ip("-n", name, "addr", "add", f"{host}/24", "dev", "eth0")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")

    def prefix(self, member: int) -> tuple[str, ...]:
        """What runs a command as this member."""
        return ("ip", "netns", "exec", self._names[member])

    def cut(self, member: int, others: list[int], *, one_way: bool = False) -> None:
        """From now on nothing passes from the member to the others; nor back, unless `one_way`."""
        for other in others:
            self._mislead(member, other)
            if not one_way:
                self._mislead(other, member)

    def unplug(self, member: int) -> None:
        """Nothing passes between the member and anybody, clients as well."""
        _ip("link", "set", self._names[member], "down")

    def heal(self) -> None:
        """Everything passes again."""
        for member, name in enumerate(self._names):
            _ip("link", "set", name, "up")
            for other in range(len(self._names)):
                if other != member:
                    with contextlib.suppress(subprocess.CalledProcessError):
                        _ip("-n", name, "neigh", "del", self.hosts[other], "dev", "eth0")

    def _mislead(self, source: int, target: int) -> None:
        _ip(
            "-n", self._names[source], "neigh", "replace", self.hosts[target],
            "lladdr", NOBODY, "dev", "eth0", "nud", "permanent",
        )  # fmt: skip
