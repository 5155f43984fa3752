"""Quorums that can be reached, and those that cannot: what is said of them."""

from __future__ import annotations

import pytest

from chmv_assets.core.own_tables import write_settings
from chmv_assets.core.quorum import JOURNAL_QUORUM, Quorum, Replicas, find_unreachable, quorum_of


def table(total: int, active: int, **more: object) -> Replicas:
    return Replicas(table="chmv.batches", total=total, active=active, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("quorum", "replicas", "said"),
    [
        (JOURNAL_QUORUM, table(1, 1), ""),
        (JOURNAL_QUORUM, table(3, 2), ""),
        (JOURNAL_QUORUM, table(3, 2, in_cluster=3), ""),
        (JOURNAL_QUORUM, table(3, 1), "found 1 of 3 replicas alive but wanted 2 for insert_quorum = auto"),
        (JOURNAL_QUORUM, table(2, 1), "found 1 of 2 replicas alive but wanted 2"),
        (JOURNAL_QUORUM, table(2, 2, readonly=True), "found this replica read-only"),
        (JOURNAL_QUORUM, table(2, 2, in_cluster=3), "found 2 replica(s) but wanted 3, as many as the cluster has"),
        (Quorum(size=4), table(3, 3), "found insert_quorum = 4 and 3 replica(s) but wanted no more than there are"),
        (Quorum(size=3), table(3, 2), "found 2 of 3 replicas alive but wanted 3 for insert_quorum = 3"),
        (Quorum(), table(3, 1), ""),
    ],
)
def test_quorum_that_cannot_be_reached_is_said_before(quorum: Quorum, replicas: Replicas, said: str) -> None:
    found = find_unreachable(quorum, replicas)
    assert said in found and bool(found) == bool(said)
    assert not found or found.startswith("table chmv.batches: ")


def test_journal_writes_with_its_quorum() -> None:
    assert quorum_of(write_settings("main")) == JOURNAL_QUORUM
    assert quorum_of({"insert_quorum": "'auto'"}).size == "auto"
