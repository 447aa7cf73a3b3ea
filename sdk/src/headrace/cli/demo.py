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
from headrace.cli.dev_plan import BROKERS_DEFAULT, plan_cluster
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
    """Send 336,776 real flights through three brokers, kill a leader on the way, check them all.

    Starts its own brokers in a temporary folder and leaves nothing behind. Ends with PASS and exit
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
        port = free_port_pair(brokers=BROKERS_DEFAULT)
        plan = plan_cluster(brokers=BROKERS_DEFAULT, data_dir=Path(folder) / "data", port=port)
        cluster = DevCluster(plan, log_path=Path(folder) / "brokers.log", quiet=True)
        try:
            async with cluster:
                return await run_demo(cluster, records=records, console=out)
        except HeadraceError:
            notice(f"the brokers' last words{cluster.log_tail()}")
            raise
        except TimeoutError:
            raise DevFault(f"the broker did not come back{cluster.log_tail()}") from None
