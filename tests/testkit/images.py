"""What an image holds, made without a container: the packages that an extra of the wheel asks for,
taken from where the tests run, and a root that nobody may write to."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
USER = 10_001
"""Whom the images run as."""


def needed(wheel: Path, extras: Iterable[str]) -> list[metadata.Distribution]:
    """All distributions that `headrace[extras]` draws in, itself left out."""
    text = zipfile.ZipFile(wheel).read(f"{_stem(wheel)}.dist-info/METADATA").decode()
    lines = text.split("\n\n")[0].splitlines()
    own = [each.removeprefix("Requires-Dist: ") for each in lines if each.startswith("Requires-D")]
    found: dict[str, metadata.Distribution] = {}
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = list(_applying(own, extras))
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        key = (name, frozenset(wanted.extras))
        if key not in done:
            done.add(key)
            each = found[name] = metadata.distribution(wanted.name)
            waiting += _applying(each.requires or [], wanted.extras)
    return list(found.values())


def _applying(requirements: Iterable[str], extras: Iterable[str]) -> Iterator[Requirement]:
    for each in map(Requirement, requirements):
        marker = each.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in (*extras, "")):
            yield each


def _stem(wheel: Path) -> str:
    return "-".join(wheel.name.split("-")[:2])


class Environment:
    """/opt/headrace of an image: an environment without pip, pruned as the image's."""

    def __init__(self, folder: Path, wheel: Path, extras: Iterable[str]) -> None:
        self.folder = folder
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
        )
        self.site = next(folder.glob("lib/python3.*/site-packages"))
        for each in needed(wheel, extras):
            self._take(each)
        zipfile.ZipFile(wheel).extractall(self.site)
        subprocess.run(["sh", ROOT / "images/prune.sh", self.site], check=True, timeout=60)
        for file in self.site.rglob("*.pyc"):  # An image's is compiled after it is pruned.
            if not (file.parent.parent / (file.name.split(".")[0] + ".py")).exists():
                file.unlink()
        script = folder / "bin/headrace"
        script.write_text(f"#!{folder}/bin/python\nfrom headrace.cli.main import main\nmain()\n")
        script.chmod(0o755)

    @property
    def size_bytes(self) -> int:
        """All of site-packages, compiled."""
        return sum(file.stat().st_size for file in self.site.rglob("*") if file.is_file())

    def _take(self, distribution: metadata.Distribution) -> None:
        source = Path(sysconfig.get_path("purelib"))
        for file in distribution.files or ():
            if file.parts[0] != ".." and (source / file).is_file():
                target = self.site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(source / file, target)
                except OSError:  # Another disk.
                    shutil.copy2(source / file, target)


def can_confine() -> bool:
    """Whether `confined` works here: it takes root and mount namespaces."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    probe = ["unshare", "--mount", "--propagation", "private", "mount", "-o", "remount,bind,ro"]
    return subprocess.run([*probe, "/"], capture_output=True, timeout=20).returncode == 0


_PASSABLE = """
mount --bind "{prefix}" /mnt && mount -t tmpfs -o mode=755 tmpfs "{closed}" &&
mkdir -p "{prefix}" && mount --move /mnt "{prefix}" || exit 1
"""
"""Where this Python lies below a folder that is closed to others (/root): opened, for this only."""

_CONFINED = """
mount --bind "$0" "$0" && mount -o remount,bind,ro / || exit 1
exec setpriv --reuid {user} --regid {user} --clear-groups --no-new-privs --bounding-set -all "$@"
"""


def confined(writable: Path, command: list[str]) -> list[str]:
    """The command as a container runs it: as nobody in particular, without capabilities, in a file
    system of which only `writable` isn't read-only."""
    prefix = Path(sys.base_prefix).resolve()
    closed = next((each for each in reversed(prefix.parents) if not each.stat().st_mode & 1), None)
    script = _CONFINED.format(user=USER)
    if closed is not None:
        script = _PASSABLE.format(prefix=prefix, closed=closed) + script
    unshared = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
    return [*unshared, str(writable), *command]
