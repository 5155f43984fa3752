"""What `chmv check` prints in the end agrees with what it prints above."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from chmv_assets.cli import catalog as commands
from chmv_assets.cli.main import main
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.model import Edge
from chmv_assets.core.names import QName
from chmv_assets.live import Disagreement

DDL = """
CREATE TABLE d.s (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE TABLE d.t (x UInt8) ENGINE = MergeTree ORDER BY x;
CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT x FROM d.s;
"""


def test_the_sum_counts_disagreements_of_hooks_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = build_catalog([SourceFile(path="a.sql", text=DDL)]).require_sound()
    edge = Edge(source=QName("d", "s"), dest=QName("d", "v"), kind="trigger")

    def load(_ddl: Path | None, _live: bool, _databases: tuple[str, ...]) -> tuple[Catalog, list[Disagreement]]:
        return catalog, [Disagreement(edge=edge, known_to="parser")]

    monkeypatch.setattr(commands, "_load", load)
    result = CliRunner().invoke(main, ["check", "--live"])
    assert result.exit_code == 1
    assert "[hook-disagreement]" in result.output
    assert "1 error(s), 2 warning(s), 0 note(s)" in result.output
    assert "Not sound" in result.output
