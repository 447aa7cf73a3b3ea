"""Which rack this broker is in, where a file tells it.

In Kubernetes the rack is the node's zone. Brokers may not read nodes: the operator copies the zone
to an annotation of the pod, which a downward-API volume shows as a file, a while after the pod was
scheduled. A broker that registered without it would be placed as if it were nowhere, so it waits.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

log = logging.getLogger(__name__)

WAIT_S = 60.0
"""How long the file may stay empty; then the broker starts without a rack, and says so."""

LOOK_S = 0.5


async def rack_of(rack: str, file: str, *, wait_s: float = WAIT_S) -> str | None:
    """The rack that the settings name, else what the file says once it says something."""
    if rack or not file:
        return rack or None
    path = Path(file)
    for _ in range(max(1, int(wait_s / LOOK_S))):
        found = _content(path)
        if found:
            return found
        await asyncio.sleep(LOOK_S)
    log.warning(
        "%s says no rack after %g s: this broker starts without one, and replicas aren't kept"
        " apart from it. Does the node have the label of rack.topologyKey?", path, wait_s,
    )  # fmt: skip
    return None


def _content(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
