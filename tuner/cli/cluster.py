"""`tuner cluster` and `tuner preempt`: a Ray cluster with simulated spot nodes on this machine, for experiments. `tuner stop` ends it."""

import dataclasses
import json
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli import tables
from tuner.cli.output import duration_ns
from tuner.cli.tables import Style
from tuner.domain.time import NS
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.service.local_cluster import KeptNode


def cluster(
    spot: Annotated[int, typer.Option(min=0, max=16, help="Number of spot nodes.")] = 2,
    on_demand: Annotated[int, typer.Option(min=0, max=16, help="Number of on-demand nodes.")] = 1,
    cpus_per_node: Annotated[int, typer.Option(min=1, max=1000, help="Logical CPUs of each node.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=0, max=1000, help="Logical GPUs of each node.")] = 0,
    replace_after: Annotated[
        str, typer.Option(help="Time until a preempted node is replaced: 60s, 5m, or never.")
    ] = "60s",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all nodes as one line of JSON at each change.")
    ] = False,
) -> None:
    """Run a local Ray cluster of simulated spot and on-demand nodes until Ctrl-C. The service with the same TUNER_HOME uses it."""
    from tuner.service import local_cluster  # imported late because it is slow

    if not spot + on_demand:
        raise typer.BadParameter("give at least one node: --spot 1 or --on-demand 1")
    replaced = None if replace_after == "never" else duration_ns(replace_after, "--replace-after") / NS
    plan = local_cluster.LocalClusterPlan(spot, on_demand, cpus_per_node, gpus_per_node, replaced)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    local_cluster.keep(Settings.from_env(), plan, on_change=_as_json if as_json else _as_table, over=over)


def stop_cluster() -> None:
    """Stop the local Ray cluster of this TUNER_HOME. Running jobs continue after the next `tuner serve`."""
    from tuner.service.cluster import RayCluster

    settings = Settings.from_env()
    if settings.ray_address:
        typer.echo("the cluster of TUNER_RAY_ADDRESS was not started by this service, so it is left running")
        return
    if RayCluster(settings).shut_down():
        typer.echo("the local Ray cluster has been stopped; a running service starts it again")
    else:
        typer.echo(
            "`tuner cluster` started the local Ray cluster, so it is left running; to end it, press Ctrl-C in `tuner cluster`"
        )


def preempt(
    node: Annotated[
        str, typer.Argument(metavar="NODE", help="Node name, such as spot-1, or the beginning of its id.")
    ],
    notice: Annotated[
        str, typer.Option(help="Time between the notice and the preemption: 15s, 2m. 0s sends no notice.")
    ] = "15s",
) -> None:
    """Preempt a node of the local cluster as a cloud preempts a spot machine. If TUNER_RAY_ADDRESS is set, only send a preemption
    notice to a node of the Ray cluster at that address."""
    from tuner.service import local_cluster

    notice_ns = duration_ns(notice, "--notice")
    local_cluster.preempt(Settings.from_env(), node, notice_ns=notice_ns, say=typer.echo)


def _as_json(nodes: "Sequence[KeptNode]", changes: list[str]) -> None:
    shown = [{k: v for k, v in dataclasses.asdict(node).items() if k != "session"} for node in nodes]
    print(json.dumps({"nodes": shown, "changes": changes}), flush=True)


def _as_table(nodes: "Sequence[KeptNode]", changes: list[str]) -> None:
    """Print the changes of nodes, one per line. Without changes, as on the first call, print the table of nodes."""
    for line in changes:
        print(line, flush=True)
    if changes:
        return
    table = tables.rows(
        nodes,
        {
            "node": lambda node: node.name,
            "id": lambda node: node.node_id[:12],
            "market": lambda node: node.market,
            "machine type": lambda node: node.instance_type,
            "price an hour": lambda node: f"${node.usd_per_hour:.4f}",
            "CPUs": lambda node: node.cpus,
            "GPUs": lambda node: node.gpus,
            "state": lambda node: node.state,
        },
    )
    typer.echo(tables.text(table, Style.TABLE), nl=False)
    print(
        "Press Ctrl-C to stop the cluster. In another terminal: tuner serve, tuner preempt spot-1", flush=True
    )
