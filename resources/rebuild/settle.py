"""Inserts in doubt: written to the source, failed in a view, to be sent again. A rebuild in between would double their rows."""

from __future__ import annotations

from chmv_assets.core.cluster import spread
from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.gate import read_failures, read_in_doubt, read_troubles
from chmv_assets.core.names import QName
from resources.journal import Journal
from resources.rebuild.barrier import require_every_replica
from resources.rebuild.workbench import Workbench

IN_DOUBT_SECONDS = 3600
SETTLE_SECONDS = 30.0


def settle(bench: Workbench, journal: Journal, root: QName) -> int:
    """Wait until no insert into a source is in doubt, or refuse; gives how many were sent by writers who wait for no answer."""
    require_every_replica(bench, root)
    deadline = bench.clock() + SETTLE_SECONDS
    while True:
        problem, unanswered = _look(journal, root)
        if not problem:
            return unanswered
        if bench.clock() > deadline:
            raise RebuildRefused(
                f"source {root}: {problem} but wanted every insert done or given up. Its retry after the rebuild would double its rows. "
                f"Let its writer finish (`chmv ingest` for ours), or wait until it is {IN_DOUBT_SECONDS // 60} minutes old."
            )
        bench.sleep(1.0)


def find_in_doubt(journal: Journal, root: QName) -> str:
    """What is in doubt in a source, as a few words; nothing if all is settled."""
    return _look(journal, root)[0]


def _look(journal: Journal, root: QName) -> tuple[str, int]:
    """The same, and the number of inserts that nobody waits for."""
    if staged := journal.read_batches(source=root, status="staged"):
        return f"batch {staged[0].batch} of ours is being committed", 0
    failures, unanswered = _count(journal, root, read_troubles(journal.cluster)) or (0, 0)
    return _name_failed(journal, root) if failures else "", unanswered


def find_failed(journal: Journal, root: QName) -> str:
    """An insert that failed after it had written to a source and was not repeated, as a few words."""
    (failures,) = _count(journal, root, read_failures(journal.cluster)) or (0,)
    return _name_failed(journal, root) if failures else ""


def _values(root: QName) -> dict[str, str | int]:
    return {"database": root.database, "table": root.table, "seconds": IN_DOUBT_SECONDS}


def _count(journal: Journal, root: QName, sql: str) -> tuple[int, ...]:
    """Numbers from the query log; none if there is no log: nobody can tell then, and most servers have one."""
    journal.server.command(spread("SYSTEM FLUSH LOGS query_log", journal.cluster))
    rows = journal.server.rows_if_there(sql, _values(root))
    return tuple(int(number) for number in rows[0]) if rows else ()


def _name_failed(journal: Journal, root: QName) -> str:
    journal.server.command(spread("SYSTEM FLUSH LOGS part_log", journal.cluster))
    rows = journal.server.rows_if_there(read_in_doubt(journal.cluster), _values(root))
    return f"the insert with token {str(rows[0][0])[:60]!r} failed and was not repeated yet" if rows else ""
