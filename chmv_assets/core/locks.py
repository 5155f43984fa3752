"""Locks with leases on plain ClickHouse: names, states and statements. Pure; `resources.journal.locks` runs them.

ClickHouse has one compare-and-set for everybody: CREATE TABLE fails (57) if the name exists. So a lock is a row of
generations, each an empty table `lock.<digest>.<number>` whose comment says who holds it and until when, written in
the same atomic step. Acquire, takeover, renew and release all create generation N + 1 after having read N: only one of
those who read N wins. Nothing is ever changed in place. The number rises for ever; the generation at which a holder
acquired is its fencing token. Generations far below the highest are dropped; one who was so slow that it re-created a
dropped number sees a higher one right after, and has lost.

On a cluster a generation is a ReplicatedMergeTree with a fixed replica name: Keeper refuses the second (253) on any node.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from chmv_assets.core.names import QName, quote_string
from chmv_assets.core.own_tables import OWN_DATABASE, Statement, keeper_path, on_cluster
from chmv_assets.core.system_tables import all_replicas_settings, system_table

LOST_RACE_CODES = frozenset({57, 253})
KEEP_GENERATIONS = 8
_DIGITS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """One generation of a lock. No owner: it was released."""

    generation: int
    owner: str = ""
    token: int = 0
    expires_us: int = 0  # by the server's clock

    def free_at(self, now_us: int) -> bool:
        return not self.owner or self.expires_us <= now_us


FREE = LockState(generation=0)


def lock_prefix(name: str) -> str:
    """The part of the table names that all generations share; any name gives a short one."""
    return f"lock.{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}."


def lock_table(name: str, generation: int) -> QName:
    return QName(OWN_DATABASE, f"{lock_prefix(name)}{generation:0{_DIGITS}d}")


def plan_acquire(seen: LockState, owner: str, now_us: int, lease_us: int) -> LockState | None:
    """The generation that would take the lock, or None while somebody holds it.

    >>> plan_acquire(FREE, "a", 100, 50)
    LockState(generation=1, owner='a', token=1, expires_us=150)
    >>> plan_acquire(LockState(generation=1, owner="a", token=1, expires_us=150), "b", 149, 50) is None
    True
    """
    if not seen.free_at(now_us):
        return None
    number = seen.generation + 1
    return LockState(generation=number, owner=owner, token=number, expires_us=now_us + lease_us)


def plan_renew(held: LockState, now_us: int, lease_us: int) -> LockState:
    """The generation that prolongs a lease; the token stays."""
    return LockState(generation=held.generation + 1, owner=held.owner, token=held.token, expires_us=now_us + lease_us)


def plan_release(held: LockState) -> LockState:
    return LockState(generation=held.generation + 1)


def render_generation(name: str, state: LockState, cluster: str = "") -> str:
    """The CREATE statement that is the compare-and-set."""
    document = {"lock": name, "owner": state.owner, "token": state.token, "expires_us": state.expires_us}
    table = lock_table(name, state.generation)
    path = keeper_path(cluster, "locks", table.table)
    engine = f"ReplicatedMergeTree({path}, 'lock') ORDER BY tuple()" if cluster else "Null"
    return f"CREATE TABLE {table.sql} (held UInt8) ENGINE = {engine} COMMENT {quote_string(json.dumps(document))}"


def render_forget(name: str, generation: int, cluster: str = "") -> str:
    return f"DROP TABLE IF EXISTS {lock_table(name, generation).sql}{on_cluster(cluster)} SYNC"


def read_generations(name: str, cluster: str = "") -> Statement:
    """All generations, highest first, with the server's clock in each row; one row without a name if there is none.

    On a cluster every node is asked, and one that does not answer fails the read: a generation must not be overlooked.
    """
    tables = system_table("tables", cluster)
    sql = (
        "SELECT found.name, found.comment, toUnixTimestamp64Micro(now64(6)) FROM (SELECT 1) AS one LEFT JOIN "
        f"(SELECT 1 AS k, name, comment FROM {tables} WHERE database = {{database:String}} "
        "AND startsWith(name, {prefix:String})) AS found ON one.`1` = found.k ORDER BY found.name DESC"
    )
    return Statement(
        sql=sql,
        parameters={"database": OWN_DATABASE, "prefix": lock_prefix(name)},
        settings=all_replicas_settings(sql),
    )


# All locks of a server: their names, and whether somebody holds them by the server's clock. The highest generation says so.
SQL_LOCKS = (
    "SELECT JSONExtractString(last, 'lock') AS lock, "
    "JSONExtractString(last, 'owner') != '' AND JSONExtractInt(last, 'expires_us') > toUnixTimestamp64Micro(now64(6)) AS held "
    f"FROM (SELECT argMax(comment, name) AS last FROM system.tables WHERE database = {quote_string(OWN_DATABASE)} AND startsWith(name, 'lock.') "
    "GROUP BY substring(name, 1, length(name) - position(reverse(name), '.')))"
)


def decode_generation(table: str, comment: str) -> LockState:
    """A generation as the server shows it; nothing stands for a lock that was never taken."""
    if not table:
        return FREE
    document = json.loads(comment)
    return LockState(
        generation=int(table.rpartition(".")[2]),
        owner=str(document["owner"]),
        token=int(document["token"]),
        expires_us=int(document["expires_us"]),
    )
