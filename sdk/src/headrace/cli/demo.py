"""`headrace demo`: starts a local cluster of its own in a temporary folder and hands it to
`headrace.demo`."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.cli.dev_cluster import DevCluster, DevFault, free_port_pair
from headrace.cli.dev_plan import plan_cluster
from headrace.cli.output import console, notice
from headrace.cli.session import REFUSED, fail, refuse
from headrace.demo.flights import DatasetMissing
from headrace.demo.run import run_demo
from headrace.protocol.errors import HeadraceError


def demo(
    records: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Only the first N flights.", show_default="all"),
    ] = None,
) -> None:
    """Send 336,776 real flights through a broker that is killed on the way, and check them all.

    Starts its own broker in a temporary folder and leaves nothing behind. Ends with PASS and exit
    code 0, or FAIL and 1.
    """
    try:
        passed = asyncio.run(_demo(records, console()))
    except (DevFault, DatasetMissing) as error:
        fail(f"error: {error}", code=REFUSED)
    except HeadraceError as error:
        refuse(error)
    raise typer.Exit(0 if passed else 1)


async def _demo(records: int | None, out: Console) -> bool:
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as folder:
        plan = plan_cluster(brokers=1, data_dir=Path(folder) / "data", port=free_port_pair())
        cluster = DevCluster(plan, log_path=Path(folder) / "broker.log", quiet=True)
        try:
            async with cluster:
                return await run_demo(cluster, records=records, console=out)
        except HeadraceError:
            notice(f"the broker's last words{cluster.log_tail()}")
            raise
        except TimeoutError:
            raise DevFault(f"the broker did not come back{cluster.log_tail()}") from None
