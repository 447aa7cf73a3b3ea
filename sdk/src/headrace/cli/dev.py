"""`headrace dev`, `headrace broker`, `headrace operator`: start processes of their own."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.dev_cluster import DevCluster, DevFault, brokers_in, missing_broker_extra
from headrace.cli.dev_plan import ClusterPlan, broker_count, plan_cluster
from headrace.cli.options import DEFAULT_BOOTSTRAP
from headrace.cli.output import notice
from headrace.cli.session import REFUSED, WRONG_USAGE, fail
from headrace.protocol import routes

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def dev(
    brokers: Annotated[
        int | None,
        typer.Option(
            help="How many brokers.", min=1, show_default="3, or as many as DIR has data of"
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="Where data lives; it is kept between runs.")
    ] = Path("headrace-data"),
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            help="First port: broker i takes PORT + 2i, and PORT + 2i + 1 for health and metrics.",
        ),
    ] = routes.DEFAULT_PORT,
) -> None:
    """Run a local cluster until Ctrl-C.

    A broker that dies is started again after a second. DATA_DIR/dev.json lists the brokers with
    their addresses and process ids.
    """
    try:
        count = broker_count(brokers, present=brokers_in(data_dir))
        plan = plan_cluster(brokers=count, data_dir=data_dir.absolute(), port=port)
    except ValueError as error:
        fail(f"error: {error}", code=WRONG_USAGE)
    try:
        interrupted = asyncio.run(_serve(plan))
    except DevFault as error:
        fail(f"error: {error}", code=REFUSED)
    raise typer.Exit(130 if interrupted else 0)


async def _serve(plan: ClusterPlan) -> bool:
    """Run the cluster until a signal; returns whether that was Ctrl-C."""
    cluster = DevCluster(plan)
    received = _catch_stop_signals(cluster)
    starting = asyncio.create_task(cluster.start())
    either: list[asyncio.Future[Any]] = [starting, received]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if not received.done():
        await starting
        _greet(plan)
        await received
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    notice("stopping ...")
    await cluster.stop()
    notice("stopped; the data is kept")
    return received.result() == signal.SIGINT


def _catch_stop_signals(cluster: DevCluster) -> asyncio.Future[signal.Signals]:
    """The first signal is the future's result; any further one kills the brokers at once."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[signal.Signals] = loop.create_future()

    def on_signal(number: signal.Signals) -> None:
        if received.done():
            cluster.kill_all()
        else:
            received.set_result(number)

    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    return received


def _greet(plan: ClusterPlan) -> None:
    """Say where the cluster is and what to try next."""
    where = "" if plan.bootstrap == DEFAULT_BOOTSTRAP else f" --bootstrap {plan.bootstrap}"
    notice(f"headrace is ready at {plan.bootstrap} (data in {plan.data_dir}). Ctrl-C stops it.")
    if len(plan.brokers) > 1:
        notice(f"brokers: {', '.join(broker.url for broker in plan.brokers)}")
    notice("try, in another terminal:")
    notice(f"  headrace topic create hello --partitions 1{where}")
    notice(f"  echo world | headrace produce hello{where}")
    notice(f"  headrace consume hello --from-beginning --exit-at-end{where}")


def broker(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings file; the environment goes before it."),
    ] = None,
) -> None:
    """Run one broker, configured by the environment (HEADRACE_...) or a file."""
    missing = missing_broker_extra()
    if missing:
        fail(f"error: {missing}", code=REFUSED)
    command = [sys.executable, "-P", "-m", "headrace.broker"]
    if config is not None:
        command += ["--config", str(config)]
    sys.stdout.flush()
    os.execv(command[0], command)


def operator() -> None:
    """Run the Kubernetes operator, configured by the environment (HEADRACE_OPERATOR_...)."""
    if not all(importlib.util.find_spec(name) for name in ("headrace.operator", "kopf")):
        hint = "pip install 'headrace[operator]'"
        fail(f"error: the operator's packages are not installed: {hint}", code=REFUSED)
    command = [sys.executable, "-P", "-m", "headrace.operator"]
    sys.stdout.flush()
    os.execv(command[0], command)
