"""The barrier: what is on its way into a source when a rebuild begins, and is in no part yet.

Rows wait in the queue of asynchronous inserts, in files of Distributed tables, in memory of Buffer tables. They are delivered before a
gate shuts. What comes to wait behind it is refused by the gate as a whole when the server tries to deliver it, is kept and tried again, and
arrives once, after the gate: measured, like everything here, by `tests/integration/rebuild/test_barrier.py`. Two cases are not safe and
are refused: a file that failed half way for another reason (its retry is in doubt), and writers who do not wait for an answer.
"""

from __future__ import annotations

from collections.abc import Sequence

from chmv_assets.core.errors import RebuildDisturbed, RebuildRefused, ServerError
from chmv_assets.core.gate import GATE_PREFIX
from chmv_assets.core.names import QName
from resources.forwarders import Forwarder, Undelivered, fetch_forwarders, fetch_undelivered
from resources.journal import CLUSTER_VARIABLE
from resources.rebuild.workbench import Workbench

_UNSENT = (GATE_PREFIX, "ALL_CONNECTION_TRIES_FAILED")  # refused as a whole, or never reached the other side


def require_every_replica(bench: Workbench, root: QName) -> None:
    """Refuse a source with other replicas whose inserts nobody can see, for want of a cluster's name."""
    node = bench.catalog.objects.get(root)
    if bench.cluster or node is None or not node.engine.startswith("Replicated"):
        return
    rows = bench.executor.server.rows(
        "SELECT total_replicas FROM system.replicas WHERE database = {d:String} AND table = {t:String}",
        {"d": root.database, "t": root.table},
    )
    if rows and int(rows[0][0]) > 1:
        raise RebuildRefused(
            f"source {root}: found {rows[0][0]} replicas and no {CLUSTER_VARIABLE} but wanted the cluster's name. Inserts that run on the "
            f"other replicas could not be seen, and their rows be lost. Set {CLUSTER_VARIABLE}."
        )


def deliver(bench: Workbench, roots: Sequence[QName]) -> tuple[Forwarder, ...]:
    """Bring in what waits on its way into these tables; what cannot be delivered now stays where it is.

    Gives the Distributed tables that lead into them.
    """
    bench.executor.flush_async_inserts()
    forwarders = fetch_forwarders(bench.executor.server, roots, bench.cluster)
    for one in forwarders:
        try:
            if one.engine == "Distributed":
                bench.executor.flush_distributed(one.name)
            else:
                bench.executor.flush_buffer(one.name)
        except ServerError as error:
            bench.executor.log(f"{one.name}: not everything that waits in it could be delivered: {error}")
    return tuple(one for one in forwarders if one.engine == "Distributed")


def require_delivered(bench: Workbench, roots: Sequence[QName], queues: Sequence[Forwarder]) -> None:
    """Refuse while files wait in Distributed tables: they will be sent at any moment, so the window is not quiet."""
    if waiting := _undelivered(bench, queues):
        one = waiting[0]
        raise RebuildDisturbed(
            f"source {', '.join(map(str, roots))}: {one.files} file(s) of {one.name} are not delivered yet but wanted none. "
            f"{_why(one)}They will be sent at any moment, so the window is not quiet. Run it again with `--protocol gated`, or when "
            "system.distribution_queue is empty."
        )


def refuse_half_delivered(bench: Workbench, queues: Sequence[Forwarder], since: int) -> None:
    """Behind a gate: refuse if a file failed for another reason than the gate since a moment of the server's clock (s).

    It may have written rows that the rebuild counts, and will be sent again.
    """
    for one in _undelivered(bench, queues):
        if one.error and one.error_at >= since and not any(sign in one.error for sign in _UNSENT):
            raise RebuildDisturbed(
                f"table {one.name}: sending one of its files failed during the rebuild but wanted it whole or not begun. {_why(one)}"
                "Its retry could double rows. Nothing was published. Run it again when system.distribution_queue is empty."
            )


def refuse_unanswered(root: QName, inserts: int) -> None:
    """Refuse to shut a gate on writers who would never learn that they were refused."""
    if inserts:
        raise RebuildRefused(
            f"source {root}: found {inserts} insert(s) of the last hour with wait_for_async_insert = 0 but wanted writers who wait for an "
            "answer. A gate's refusal would never reach them, and their rows would be lost. Use `--protocol fenced`, or `closed` when the "
            "window is quiet, or let them wait."
        )


def _undelivered(bench: Workbench, queues: Sequence[Forwarder]) -> tuple[Undelivered, ...]:
    """Here, on our replicas, and on the servers of every cluster that one of the tables leads to: each may hold files for us."""
    names = [one.name for one in queues]
    clusters = dict.fromkeys((bench.cluster, *(one.cluster for one in queues)))
    server = bench.executor.server
    found = [
        fetch_undelivered(server, names, cluster, is_ours=cluster == bench.cluster)
        for cluster in (clusters if queues else ())
    ]
    return tuple(dict.fromkeys(one for some in found for one in some))


def _why(one: Undelivered) -> str:
    return f"The last try said: {' '.join(one.error.split())[:200]}. " if one.error else ""
