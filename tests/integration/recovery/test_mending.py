"""Views are put back as their folder declares them: with all of its statements, in its databases, and after a crash at any step."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chmv_assets.core.names import QName
from chmv_assets.core.recovery import Ask
from chmv_assets.core.statements import SourceFile, split_statements
from chmv_assets.pipeline import load_pipeline
from chmv_assets.recovery import views
from chmv_assets.recovery.mending import declared_statement, look_at, mend_view
from chmv_assets.recovery.site import RecoverySite
from resources.clickhouse import Server
from resources.journal import Journal

HOUR_MS = 3_600_000
SOURCE = "CREATE TABLE {raw}.events (at DateTime, n UInt64) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n;\n"


@dataclass
class Folder:
    """A folder that was applied to two databases of its own, `{raw}` and `{gold}` in every text."""

    site: RecoverySite
    raw: str
    gold: str

    def text(self, text: str) -> str:
        return text.replace("{raw}", self.raw).replace("{gold}", self.gold)

    def run(self, sql: str) -> None:
        self.site.server.command(self.text(sql), settings={"async_insert": 0})

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return self.site.server.rows(self.text(sql))

    def live(self, name: str) -> str:
        """The statement that the server keeps."""
        sql = "SELECT create_table_query FROM system.tables WHERE database = '{gold}' AND name = "
        return str(self.rows(f"{sql}'{name}'")[0][0])

    def ask(self, name: str, damage: str) -> Ask:
        """Rows of the last hour are rows of long ago to it."""
        now = int(time.time() * 1000)
        return Ask(kind="view", subject=QName(self.gold, name), damage=damage, evidence=f"a test of {name}", since_ms=now + HOUR_MS)  # fmt: skip


Apply = Callable[[str], Folder]


@pytest.fixture
def apply(server: Server, tmp_path: Path) -> Iterator[Apply]:
    raw, gold = (f"{word}_{secrets.token_hex(4)}" for word in ("raw", "gold"))

    def make(text: str) -> Folder:
        text = text.replace("{raw}", raw).replace("{gold}", gold)
        (tmp_path / "a.sql").write_text(text)
        pipeline = load_pipeline(tmp_path).require_sound()
        for database in (raw, gold):
            server.command(f"CREATE DATABASE {database}")
        session = ""
        for statement in split_statements(SourceFile(path="a.sql", text=text))[0]:
            if statement.text.startswith("USE "):
                session = statement.text.removeprefix("USE ")
            else:
                server.command(statement.text, settings={"database": session} if session else None)
        journal = Journal(server)
        journal.prepare()
        return Folder(RecoverySite(pipeline, server, journal, lambda _line: None, run_id="mending"), raw, gold)

    yield make
    for database in (raw, gold):
        server.command(f"DROP DATABASE IF EXISTS {database} SYNC")


@pytest.mark.parametrize("seen", ("dropped", "unhooked", "changed"))
def test_a_repair_that_broke_off_rebuilds_all_of_an_inner_table_in_its_next_try(
    apply: Apply, monkeypatch: pytest.MonkeyPatch, seen: str
) -> None:
    """What the first try created is empty, and the second finds it right."""
    inner = "CREATE MATERIALIZED VIEW {gold}.copy ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n AS SELECT at, n FROM {raw}.events;\n"
    folder = apply(SOURCE + inner)
    folder.run("INSERT INTO {raw}.events VALUES ('2026-11-01 00:00:00', 1), ('2026-11-02 00:00:00', 2)")
    folder.run("DROP TABLE {gold}.copy SYNC")
    if seen == "changed":  # by hand, into a table that is not its own
        folder.run("CREATE TABLE {gold}.other AS {raw}.events")
        folder.run("CREATE MATERIALIZED VIEW {gold}.copy TO {gold}.other AS SELECT at, n FROM {raw}.events")

    def die(_site: RecoverySite) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(views, "drain_inserts", die)
        with pytest.raises(KeyboardInterrupt):
            views.recover(folder.site, folder.ask("copy", seen))
    assert folder.rows("SELECT count() FROM {gold}.copy") == [(0,)]
    views.recover(folder.site, folder.ask("copy", "rows missed"))
    assert folder.rows("SELECT n FROM {gold}.copy ORDER BY n") == [(1,), (2,)]


HISTORY = (
    "CREATE TABLE {raw}.events (at DateTime) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY at;\n"
    "ALTER TABLE {raw}.events ADD COLUMN n UInt64;\n"
    "CREATE TABLE {gold}.old (at DateTime, n UInt64) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY at;\n"
    "RENAME TABLE {gold}.old TO {gold}.hist;\n"
    "ALTER TABLE {gold}.hist ADD COLUMN twice UInt64 DEFAULT 0;\n"
    "CREATE MATERIALIZED VIEW {gold}.old_mv TO {gold}.hist AS SELECT at, n FROM {raw}.events;\n"
    "RENAME TABLE {gold}.old_mv TO {gold}.hist_mv;\n"
    "ALTER TABLE {gold}.hist_mv MODIFY QUERY SELECT at, n, 2 * n AS twice FROM {raw}.events;\n"
)


@pytest.mark.parametrize(
    "damage",
    (
        "DROP TABLE {gold}.hist_mv SYNC",
        "ALTER TABLE {gold}.hist_mv MODIFY QUERY SELECT at FROM {raw}.events",
        "RENAME TABLE {raw}.events TO {raw}.away; CREATE TABLE {raw}.events AS {raw}.away",
    ),
)
def test_a_view_is_made_as_all_statements_of_the_folder_declare_it(apply: Apply, damage: str) -> None:
    folder = apply(HISTORY)
    declared = folder.live("hist_mv")
    for statement in damage.split(";"):
        folder.run(statement)
    view = folder.site.pipeline.catalog.get(folder.text("{gold}.hist_mv"))
    assert mend_view(folder.site, view)
    assert folder.live("hist_mv") == declared
    folder.run("INSERT INTO {raw}.events VALUES ('2026-11-01 00:00:00', 1)")
    assert folder.rows("SELECT n, twice FROM {gold}.hist") == [(1, 2)]


def test_a_target_is_made_as_all_statements_of_the_folder_declare_it(apply: Apply) -> None:
    folder = apply(HISTORY)
    declared = folder.live("hist")
    folder.run("INSERT INTO {raw}.events VALUES ('2026-11-01 00:00:00', 1)")
    folder.run("DROP TABLE {gold}.hist SYNC")
    views.recover(folder.site, folder.ask("hist", "target dropped"))
    assert folder.live("hist") == declared
    assert folder.rows("SELECT n, twice FROM {gold}.hist") == [(1, 2)]


def test_no_view_is_made_for_a_query_that_names_its_databases(apply: Apply) -> None:
    """Then the session does not matter, which most folders do not say."""
    folder = apply(HISTORY)
    said: list[str] = []
    folder.site.log = said.append
    folder.run("DROP TABLE {gold}.hist_mv SYNC")
    assert mend_view(folder.site, folder.site.pipeline.catalog.get(folder.text("{gold}.hist_mv")))
    assert [line for line in said if "query." in line] == []
    assert any("give" in line for line in said)


def test_what_was_never_altered_is_sent_as_it_is_written(apply: Apply) -> None:
    text = "CREATE  TABLE events (at DateTime /* in UTC */) ENGINE = MergeTree ORDER BY at"
    view = "CREATE  MATERIALIZED VIEW {gold}.copy ENGINE = MergeTree ORDER BY at AS SELECT at /* in UTC */ FROM events"
    folder = apply(f"USE {{raw}};\n{text};\n{view};\n")
    catalog = folder.site.pipeline.catalog
    for name, written in (("{raw}.events", text), ("{gold}.copy", view)):
        assert declared_statement(catalog.get(folder.text(name))).rstrip(";") == folder.text(written)


# What unqualified names mean is said by USE, not by where the view is; `{gold}.events` is there to be mistaken for it.
ELSEWHERE = SOURCE + (
    "CREATE TABLE {gold}.events (at DateTime, n UInt64) ENGINE = MergeTree ORDER BY n;\n"
    "CREATE TABLE {gold}.tgt (at DateTime, n UInt64) ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n;\n"
    "USE {raw};\n"
    "CREATE MATERIALIZED VIEW {gold}.to_mv TO {gold}.tgt AS SELECT at, n FROM events WHERE n NOT IN (SELECT n + 100 FROM events);\n"
    "CREATE MATERIALIZED VIEW {gold}.inner_mv ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n AS SELECT at, n FROM events;\n"
)


@pytest.mark.parametrize("name", ("to_mv", "inner_mv"))
@pytest.mark.parametrize(
    "damage",
    (
        "DROP TABLE {gold}.{name} SYNC",
        "ALTER TABLE {gold}.{name} MODIFY QUERY SELECT at, n * 7 AS n FROM {raw}.events",
        "ALTER TABLE {gold}.{name} MODIFY QUERY SELECT at, n FROM {gold}.events",
    ),
)
@pytest.mark.parametrize("mistakable", (False, True))
def test_a_view_reads_the_database_in_which_it_was_declared(
    apply: Apply, name: str, damage: str, mistakable: bool
) -> None:
    folder = apply(ELSEWHERE)
    declared = folder.live(name)
    folder.run(damage.replace("{name}", name))
    if not mistakable and "{gold}.events" not in damage:
        folder.run("DROP TABLE {gold}.events SYNC")
    view = folder.site.pipeline.catalog.get(folder.text(f"{{gold}}.{name}"))
    assert look_at(folder.site, view).damage
    assert mend_view(folder.site, view)
    assert folder.live(name) == declared
    folder.run("INSERT INTO {raw}.events VALUES ('2026-11-01 00:00:00', 1)")
    assert folder.rows(f"SELECT n FROM {{gold}}.{name}") == [(1,)]
    assert folder.rows("SELECT name FROM system.tables WHERE database = 'chmv' AND name LIKE '%{gold}%'") == []


@pytest.mark.parametrize("damage", ("dropped", "unhooked"))
def test_columns_of_an_inner_table_stay_as_they_were_declared_by_hand(apply: Apply, damage: str) -> None:
    """MODIFY QUERY keeps the columns of a view that has a table of its own, and nothing else lets the server fire it."""
    listed = "(at DateTime, n UInt64 COMMENT 'how many', note String DEFAULT 'none')"
    view = f"CREATE MATERIALIZED VIEW {{gold}}.copy {listed} ENGINE = MergeTree PARTITION BY toDate(at) ORDER BY n AS SELECT at, toUInt8(n) AS n FROM {{raw}}.events;\n"
    folder = apply(SOURCE + view)
    declared = folder.live("copy")
    folder.run("ALTER TABLE {gold}.copy MODIFY QUERY SELECT at, toUInt8(n) AS n FROM {raw}.events")
    folder.run("RENAME TABLE {raw}.events TO {raw}.away")
    folder.run("CREATE TABLE {raw}.events AS {raw}.away")
    if damage == "dropped":
        folder.run("DROP TABLE {gold}.copy SYNC")
    assert mend_view(folder.site, folder.site.pipeline.catalog.get(folder.text("{gold}.copy")))
    assert folder.live("copy") == declared
    folder.run("INSERT INTO {raw}.events VALUES ('2026-11-01 00:00:00', 1)")
    assert folder.rows("SELECT n, note FROM {gold}.copy") == [(1, "none")]
