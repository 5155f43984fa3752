"""Rules about where rows lie: room on disks, parts that fell out, tables that take no writes, object storage."""

from __future__ import annotations

from collections.abc import Iterator

from chmv_assets.core.doctor.facts import Disk, Facts, LiveTable
from chmv_assets.core.doctor.finding import Ailment, Rule
from chmv_assets.core.names import quote_string

_QUEUES = ("S3", "S3Queue", "AzureBlobStorage", "AzureQueue", "GCS", "OSS", "COSN")
REBUILD_ROOM = 1.2  # of a partition: `resources.rebuild` wants as much before it begins


def _room(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for disk in facts.disks:
        if disk.is_object_storage or not disk.total_bytes:
            continue
        share = disk.free_bytes / disk.total_bytes
        largest = max(
            (t for t in facts.tables.values() if disk in _disks_of(facts, t)),
            key=lambda t: t.largest_partition_bytes,
            default=None,
        )
        needed = REBUILD_ROOM * largest.largest_partition_bytes if largest is not None else 0
        measured = f"{_bytes(disk.free_bytes)} of {_bytes(disk.total_bytes)} free ({share:.0%})"
        fix = f"-- add space to disk {disk.name}, or move old partitions: ALTER TABLE … MOVE PARTITION … TO DISK '…'"
        if largest is not None and disk.free_bytes < needed:
            wanted = f"{_bytes(needed)}, to rebuild the largest partition of {largest.name}"
            yield rule.ailment(f"disk {disk.name}", measured, wanted, fix)
        elif share < facts.limits.disk_full:
            yield rule.ailment(f"disk {disk.name}", measured, f"at least {facts.limits.disk_full:.0%}", fix)
        elif share < facts.limits.disk_low:
            yield rule.ailment(
                f"disk {disk.name}", measured, f"at least {facts.limits.disk_low:.0%}", fix, severity="warn"
            )


def _disks_of(facts: Facts, table: LiveTable) -> tuple[Disk, ...]:
    names = facts.policies.get(table.storage_policy, ())
    return tuple(disk for disk in facts.disks if disk.name in names)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} TiB"


def _readonly(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for disk in facts.disks:
        if disk.is_read_only or disk.is_broken:
            found = "broken" if disk.is_broken else "read-only"
            yield rule.ailment(f"disk {disk.name}", found, "writable", f"SYSTEM RESTART DISK {disk.name}")
    for table in facts.tables.values():
        if table.is_readonly:
            yield rule.ailment(
                str(table.name), "the replica is read-only", "writable", f"SYSTEM RESTART REPLICA {table.name.sql}"
            )
        elif table.number("table_readonly", 0):
            yield rule.ailment(
                str(table.name),
                "table_readonly = 1",
                "0",
                f"ALTER TABLE {table.name.sql} MODIFY SETTING table_readonly = 0",
            )


def _broken(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for table in facts.tables.values():
        if table.broken_parts:
            yield rule.ailment(
                str(table.name), f"{len(table.broken_parts)} broken part(s): {_some(table.broken_parts)}", "none",
                f"-- rebuild the windows that lost rows: chmv reconcile {table.name}; then remove the part:",
                *(_drop(table, part) for part in table.broken_parts[:3]),
            )  # fmt: skip


def _detached(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for table in facts.tables.values():
        if table.detached_parts:
            yield rule.ailment(
                str(table.name), f"{len(table.detached_parts)} detached part(s): {_some(table.detached_parts)}", "none",
                *(_drop(table, part) for part in table.detached_parts[:3]),
            )  # fmt: skip


def _drop(table: LiveTable, part: str) -> str:
    return f"ALTER TABLE {table.name.sql} DROP DETACHED PART {quote_string(part)} SETTINGS allow_drop_detached = 1"


def _some(parts: tuple[str, ...]) -> str:
    return ", ".join(parts[:3]) + (", …" if len(parts) > 3 else "")


def _requests(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for name, table in facts.tables.items():
        disks = [disk.name for disk in _disks_of(facts, table) if disk.is_object_storage]
        if disks or table.engine in _QUEUES:
            yield rule.ailment(
                str(name), f"on {'disk ' + ', '.join(disks) if disks else 'engine ' + table.engine}", "requests within the store's rate",
                "<!-- config.d --> <s3><rate><max_put_rps>1000</max_put_rps><max_get_rps>3000</max_get_rps></rate></s3>"
                if table.engine in _QUEUES
                else f"<!-- config.d --> <storage_configuration><disks><{disks[0]}><s3_max_put_rps>1000</s3_max_put_rps>"
                f"<s3_max_get_rps>3000</s3_max_get_rps></{disks[0]}></disks></storage_configuration>",
            )  # fmt: skip


RULES = (
    Rule(
        id="disk-headroom", severity="error", measured="free and total space of system.disks; the largest partition on it", judge=_room,
        wanted="1.2 × the largest partition; `disk_full` of the disk (error), `disk_low` (warn)",
        why="A rebuild holds a partition twice until it is published, and a merge needs room for its result.",
    ),
    Rule(
        id="table-readonly", severity="error", measured="system.replicas, system.disks, the setting table_readonly", wanted="writable", judge=_readonly,
        why="An insert into a source fails as a whole when one table behind it takes no writes.",
    ),
    Rule(
        id="broken-parts", severity="warn", measured="system.detached_parts with a reason", wanted="none", judge=_broken,
        why="The server set them aside because they could not be read: their rows are missing in the table.",
    ),
    Rule(
        id="detached-parts", severity="advice", measured="system.detached_parts that somebody detached", wanted="none", judge=_detached,
        why="They take room, and who attaches them later brings rows back that a rebuild has counted already.",
    ),
    Rule(
        id="object-storage-rate", severity="advice", measured="disks and engines of object storage", wanted="a limit of requests", judge=_requests,
        why="S3 answers 3,500 writes and 5,500 reads a second per prefix, then 503: every part is a dozen files, and a rebuild writes many parts.",
    ),
)  # fmt: skip
