"""How a statement of ours becomes a cluster's, and which clusters chmv can work on. Pure; the one place that decides it.

Every statement that chmv writes goes through `spread`. What it does, by kind:

    CREATE, DROP, ATTACH, DETACH, UNDROP, RENAME, EXCHANGE, ALTER   ON CLUSTER: every replica has its own catalog of objects
    ALTER … REPLACE, ATTACH, DROP, MOVE PARTITION or PART           as it is: a Replicated table hands it on by itself
    INSERT, DELETE, OPTIMIZE                                        as it is, for the same reason
    SYSTEM STOP | START MERGES, FLUSH …                             ON CLUSTER: it speaks of one server's memory
    SYSTEM SYNC REPLICA, REFRESH | WAIT VIEW                        as it is: meant is the server that we speak to

Not ON CLUSTER is what only that server has (`is_local`): scratches, staging, probes, snapshots and serving views. A cluster here is one shard:
the journal says of a window that it is done, not on which shard (ADR 14), so a cluster of several shards is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from chmv_assets.core.clause_reader import read_name
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.own_tables import OWN_DATABASE, Statement
from chmv_assets.core.serving import SERVING_DATABASE, SNAPSHOT_DATABASE
from chmv_assets.core.tokens import Cursor, tokenize

STORAGE_PREFIX = "storage."  # tables that are to take a declared one's place
_SHARED = ("kept.", STORAGE_PREFIX)  # of our own database, and on every replica nevertheless
_LOCAL = (SERVING_DATABASE, SNAPSHOT_DATABASE)
_OBJECTS = (("MATERIALIZED", "VIEW"), ("VIEW",), ("DICTIONARY",), ("DATABASE",), ("TABLE",))
_HEADS = ("CREATE", "DROP", "DETACH", "ATTACH", "UNDROP", "ALTER")
_PAIRS = ("RENAME", "EXCHANGE")
_DATA = ("REPLACE", "ATTACH", "DROP", "MOVE", "FETCH", "FREEZE")  # before PARTITION or PART
_SYSTEM = (
    ("STOP", "MERGES"), ("START", "MERGES"), ("FLUSH", "DISTRIBUTED"), ("FLUSH", "ASYNC", "INSERT", "QUEUE"), ("FLUSH", "LOGS"),
)  # fmt: skip
SPREAD_SETTINGS = {
    "alter_sync": 2,  # until every replica has it
    "distributed_ddl_output_mode": "throw",  # a profile may say otherwise, and a replica that failed would not be noticed
}


def is_local(name: QName) -> bool:
    """Whether an object stands on the server that chmv speaks to, and nowhere else.

    >>> is_local(QName("shop", "t")), is_local(QName("chmv", "scratch.1f.0")), is_local(QName("chmv", "kept.1f.shop.t"))
    (False, True, False)
    """
    if name.database in _LOCAL:
        return True
    return name.database == OWN_DATABASE and bool(name.table) and not name.table.startswith(_SHARED)


def spread(sql: str, cluster: str, self_spreading: Collection[str] = (), session: str = "") -> str:
    """A statement for every replica of a cluster, if that is what it takes; an ON CLUSTER that it has already becomes ours.

    `self_spreading` are databases (of engine Replicated) that hand DDL on by themselves, and refuse it ON CLUSTER; names without a database
    belong to that of the `session`.

    >>> spread("ALTER TABLE a.b ADD COLUMN x UInt8", "main")
    'ALTER TABLE a.b ON CLUSTER `main` ADD COLUMN x UInt8'
    >>> spread("ALTER TABLE a.b REPLACE PARTITION ID '1' FROM `chmv`.`scratch.1`", "main")
    "ALTER TABLE a.b REPLACE PARTITION ID '1' FROM `chmv`.`scratch.1`"
    >>> spread("EXCHANGE TABLES a.b AND `chmv`.`kept.1.a.b`", "main")
    'EXCHANGE TABLES a.b AND `chmv`.`kept.1.a.b` ON CLUSTER `main`'
    >>> spread("SYSTEM STOP MERGES a.b", "main"), spread("SYSTEM STOP MERGES `chmv`.`scratch.1`", "main")
    ('SYSTEM STOP MERGES ON CLUSTER `main` a.b', 'SYSTEM STOP MERGES `chmv`.`scratch.1`')
    """
    if not cluster:
        return sql
    tokens, _ = tokenize(sql)
    cursor = Cursor(sql, tokens)
    head = cursor.next()
    if head.is_word("SYSTEM"):
        return _spread_system(sql, cursor, cluster)
    if head.is_word(*_PAIRS):
        return _spread_pair(sql, cursor, cluster, self_spreading, session)
    if not head.is_word(*_HEADS):
        return sql
    cursor.take_words("OR", "REPLACE")
    kind = next((words for words in _OBJECTS if cursor.take_words(*words)), None)
    if kind is None:
        return sql
    _ = cursor.take_words("IF", "NOT", "EXISTS") or cursor.take_words("IF", "EXISTS")
    name = read_name(cursor, session)
    if name is None or (head.is_word("ALTER") and _moves_data(cursor)):
        return sql
    if kind == ("DATABASE",):
        name = QName(name.table, "")
    if is_local(name) or name.database in self_spreading:
        return _without(sql, cursor)
    if cursor.at_words("UUID"):
        cursor.at += 2
    return _insert(sql, cursor, cluster)


def _spread_system(sql: str, cursor: Cursor, cluster: str) -> str:
    words = next((words for words in _SYSTEM if cursor.take_words(*words)), None)
    if words is None:
        return sql
    end = cursor.peek(-1).end
    tail = _skip_clause(cursor)
    name = read_name(cursor, "")
    if name is not None and words[1] == "MERGES" and is_local(name):
        return sql[:end] + sql[tail:]
    return f"{sql[:end]}{_clause(cluster)}{sql[tail:]}"


def _spread_pair(sql: str, cursor: Cursor, cluster: str, self_spreading: Collection[str], session: str) -> str:
    """Names first, ON CLUSTER last. What is moved between a local and a shared name is moved on every replica."""
    names: list[QName] = []
    if cursor.take_words("DATABASE") or cursor.take_words("DATABASES"):
        return sql
    _ = cursor.take_words("TABLE") or cursor.take_words("TABLES") or cursor.take_words("DICTIONARY")
    while (name := read_name(cursor, session)) is not None:
        names.append(name)
        if not (cursor.take_words("TO") or cursor.take_words("AND") or cursor.take_op(",")):
            break
    end = cursor.peek(-1).end
    tail = _skip_clause(cursor)
    if all(is_local(one) for one in names) or any(one.database in self_spreading for one in names):
        return sql[:end] + sql[tail:]
    return f"{sql[:end]}{_clause(cluster)}{sql[tail:]}"


def _moves_data(cursor: Cursor) -> bool:
    """Whether an ALTER is about partitions or parts, which a Replicated table hands on by itself."""
    return cursor.peek().is_word(*_DATA) and cursor.peek(1).is_word("PARTITION", "PART")


def _clause(cluster: str) -> str:
    return f" ON CLUSTER {quote_identifier(cluster)}"


def _skip_clause(cursor: Cursor) -> int:
    """Step over an ON CLUSTER; gives where the text goes on."""
    end = cursor.peek(-1).end
    if cursor.take_words("ON", "CLUSTER"):
        end = cursor.next().end
    return end


def _insert(sql: str, cursor: Cursor, cluster: str) -> str:
    end = cursor.peek(-1).end
    return f"{sql[:end]}{_clause(cluster)}{sql[_skip_clause(cursor) :]}"


def _without(sql: str, cursor: Cursor) -> str:
    end = cursor.peek(-1).end
    return sql[:end] + sql[_skip_clause(cursor) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A cluster as the server that we speak to knows it."""

    cluster: str
    shards: int  # 0: it does not know such a cluster
    replicas: int = 0  # of the shard that we are on
    is_member: bool = True  # whether that server is one of them
    known: tuple[str, ...] = ()  # clusters that it knows
    self_spreading: tuple[str, ...] = ()  # databases that hand DDL on by themselves


def read_topology(cluster: str) -> Statement:
    """Everything about a cluster with one query."""
    mine = "cluster = {cluster:String}"
    sql = (
        f"SELECT uniqExactIf(shard_num, {mine}), countIf({mine} AND shard_num IN (SELECT shard_num FROM system.clusters WHERE {mine} "
        f"AND is_local)), countIf({mine} AND is_local), groupUniqArray(cluster), "
        "(SELECT groupArray(name) FROM system.databases WHERE engine = 'Replicated') FROM system.clusters"
    )
    return Statement(sql=sql, parameters={"cluster": cluster}, settings={})


def decode_topology(cluster: str, row: Sequence[object]) -> Topology:
    """One row of `read_topology`."""
    shards, replicas, local, known, spreading = row
    return Topology(
        cluster=cluster, shards=int(str(shards)), replicas=int(str(replicas)), is_member=bool(local),
        known=tuple(sorted(_texts(known))), self_spreading=tuple(sorted(_texts(spreading))),
    )  # fmt: skip


def _texts(found: object) -> Iterable[str]:
    return [str(one) for one in found] if isinstance(found, (list, tuple)) else []


def find_unfit(found: Topology) -> str:
    """Why chmv cannot work on a cluster, as a whole message; nothing if it can."""
    if not found.shards:
        near = difflib.get_close_matches(found.cluster, found.known, n=3, cutoff=0.4) or found.known[:5]
        return (
            f"cluster {found.cluster}: found no such one on the server but wanted it in its `remote_servers` ({', '.join(near) or 'it knows none'}). "
            "Statements for its replicas would reach nobody. Correct CHMV_CLICKHOUSE_CLUSTER, or configure it."
        )
    if found.shards > 1:
        return (
            f"cluster {found.cluster}: found {found.shards} shards but wanted one. chmv replaces rows on the shard that it speaks to, and its "
            "journal would call the window done on all of them. Name a cluster of this shard's replicas in CHMV_CLICKHOUSE_CLUSTER (an entry of its "
            "own in `remote_servers`), and run one chmv per shard (docs/cluster.md)."
        )
    if not found.is_member:
        return (
            f"cluster {found.cluster}: found that the server at CHMV_CLICKHOUSE_URL is none of its replicas but wanted one of them. Scratches live on "
            "that server, and partitions are swapped in from there. Connect to a replica itself, not to a balancer or another shard."
        )
    return ""


def find_unnamed(objects: Iterable[Object], cluster: str) -> str:
    """Why a folder that says ON CLUSTER cannot be deployed by a chmv that knows of none, as a whole message; nothing if it can."""
    said = next((one for one in objects if one.cluster), None)
    if cluster or said is None:
        return ""
    return (
        f"{said.kind.replace('_', ' ')} {said.name}: found ON CLUSTER {said.cluster} in its declaration and no CHMV_CLICKHOUSE_CLUSTER but wanted the cluster's name. "
        "ALTER, DROP and RENAME would reach one replica only. Set CHMV_CLICKHOUSE_CLUSTER (docs/cluster.md)."
    )


def refuse_unspread(kind: str, name: QName, engine: str, replicas: int) -> str:
    """Why a table cannot be rebuilt on so many replicas: a plain one is another table on each of them. Nothing if it can.

    >>> refuse_unspread("target", QName("d", "t"), "ReplicatedSummingMergeTree", 2), refuse_unspread("target", QName("d", "t"), "MergeTree", 1)
    ('', '')
    """
    if replicas < 2 or engine.startswith(("Replicated", "Shared")) or not engine.endswith("MergeTree"):
        return ""
    return (
        f"{kind} {name}: found {engine} on {replicas} replicas but wanted its Replicated form. Each replica has rows of its own in it, and only those "
        f"of the server that chmv speaks to would be read or replaced. Make it Replicated{engine}, or name a cluster of this server alone."
    )
