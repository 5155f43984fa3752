"""Inserts in doubt: written to the source, failed in a view, to be sent again. A rebuild in between would double their rows."""

from __future__ import annotations

from chmv_assets.core.errors import RebuildRefused, ServerError
from chmv_assets.core.gate import read_failures, read_in_doubt
from chmv_assets.core.names import QName
from chmv_assets.core.own_tables import on_cluster
from resources.journal import Journal
from resources.rebuild.barrier import require_every_replica
from resources.rebuild.workbench import Workbench

IN_DOUBT_SECONDS = 3600
SETTLE_SECONDS = 30.0
_MISSING = frozenset({60, 81})


def settle(bench: Workbench, journal: Journal, root: QName) -> None:
    """Wait until no insert into a source is in doubt, or refuse."""
    require_every_replica(bench, root)
    deadline = bench.clock() + SETTLE_SECONDS
    while problem := find_in_doubt(journal, root):
        if bench.clock() > deadline:
            raise RebuildRefused(
                f"source {root}: {problem} but wanted every insert done or given up. Its retry after the rebuild would double its rows. "
                f"Let its writer finish (`chmv ingest` for ours), or wait until it is {IN_DOUBT_SECONDS // 60} minutes old."
            )
        bench.sleep(1.0)


def find_in_doubt(journal: Journal, root: QName) -> str:
    """What is in doubt in a source, as a few words; nothing if all is settled."""
    if staged := journal.read_batches(source=root, status="staged"):
        return f"batch {staged[0].batch} of ours is being committed"
    return find_failed(journal, root)


def find_failed(journal: Journal, root: QName) -> str:
    """An insert that failed after it had written to a source and was not repeated, as a few words."""
    server, cluster = journal.server, journal.cluster
    values = {"database": root.database, "table": root.table, "seconds": IN_DOUBT_SECONDS}
    server.command(f"SYSTEM FLUSH LOGS{on_cluster(cluster)} query_log")
    try:
        if not int(server.rows(read_failures(cluster), values)[0][0]):
            return ""
        server.command(f"SYSTEM FLUSH LOGS{on_cluster(cluster)} part_log")
        rows = server.rows(read_in_doubt(cluster), values)
    except ServerError as error:
        if error.code not in _MISSING:  # without these logs nobody can tell, and most servers have them
            raise
        rows = []
    return f"the insert with token {str(rows[0][0])[:60]!r} failed and was not repeated yet" if rows else ""
