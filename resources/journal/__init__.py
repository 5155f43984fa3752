"""The journal of chmv: batches, watermarks, locks, and recovery from them. Import from here."""

from resources.journal.locks import HeldLock, Locks
from resources.journal.recovery import collect_garbage, fetch_staging, finish_batch
from resources.journal.store import CLUSTER_VARIABLE, Journal, cluster_from_environment, open_journal

__all__ = [
    "CLUSTER_VARIABLE",
    "HeldLock",
    "Journal",
    "Locks",
    "cluster_from_environment",
    "collect_garbage",
    "fetch_staging",
    "finish_batch",
    "open_journal",
]
