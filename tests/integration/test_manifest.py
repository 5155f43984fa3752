"""The manifest on the real server: a content belongs to the batch that took it first."""

from __future__ import annotations

import secrets

import pytest

from chmv_assets.core.errors import JournalRefused
from chmv_assets.core.landing import Batch, LandingFile, plan_batches
from chmv_assets.core.manifest import QUARANTINE
from chmv_assets.core.names import QName
from chmv_assets.core.versions import VersionAllocator
from resources.clickhouse import Server
from resources.journal import Journal
from resources.journal.manifest import hold_landing, read_quarantined, read_taken_files, take_files


def file(path: str, checksum: str) -> LandingFile:
    return LandingFile(path=path, bytes=7, checksum=checksum)


def test_first_batch_keeps_a_content_and_a_second_plan_is_empty(server: Server) -> None:
    journal = Journal(server)
    source = QName("d", f"s{secrets.token_hex(3)}")
    files = [file("a", "x"), file("o'dd\\name.csv", "y")]
    with hold_landing(journal, source):
        assert read_taken_files(journal, source) == []
        (batch,) = plan_batches(source, files, {}).batches
        version = take_files(journal, source, [batch])
    take_files(journal, source, [batch])
    with pytest.raises(JournalRefused, match="found it taken by batch"):
        take_files(journal, source, [Batch(id="later", files=(file("copy", "x"),))])
    slow_clock = Journal(server, versions=VersionAllocator(clock_ms=lambda: 1_000))
    with pytest.raises(JournalRefused, match="Loading it here too would double its rows"):
        take_files(slow_clock, source, [Batch(id="delayed", files=(file("copy", "x"),))])
    taken = sorted((one.checksum, one.path, one.batch, one.version) for one in read_taken_files(journal, source))
    assert taken == [("x", "a", batch.id, version), ("y", "o'dd\\name.csv", batch.id, version)]
    assert read_taken_files(journal, QName("d", "other")) == []
    again = plan_batches(source, [*files, file("copy", "x")], {"x": "a", "y": "o'dd\\name.csv"})
    assert (again.batches, again.known, [(f.path, first) for f, first in again.duplicates]) == ((), 2, [("copy", "a")])


def test_quarantined_rows_are_counted_by_reason(server: Server) -> None:
    journal = Journal(server)
    journal.prepare()
    source = QName("d", f"q{secrets.token_hex(3)}")
    server.command(
        f"INSERT INTO {QUARANTINE.sql} (source, batch_id, file, reason, row) "
        "SELECT {s:String}, 'b', 'f', if(number < 3, 'null', 'range'), toString(number) FROM numbers(5)",
        {"s": str(source)},
    )
    assert read_quarantined(journal, source, "b") == {"null": 3, "range": 2}
    assert read_quarantined(journal, source, "other") == {}
