"""A pipeline on a server whose accounts have what `chmv grants` says. What is done there: `privilege_parts`."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from click.testing import CliRunner

from chmv_assets.cli.grants import landing_sources
from chmv_assets.cli.main import main
from chmv_assets.core.grants import ACCOUNTS, Account, Grant, build_grants, render_users_xml
from chmv_assets.core.names import QName
from chmv_assets.core.windows import Window
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Endpoint, Server
from resources.engine import EngineInfo, EngineOptions, start_engine, stop_engine

DDL = """
CREATE TABLE guarded.hits (at DateTime('UTC'), page LowCardinality(String), ms UInt32, arrived DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at SETTINGS non_replicated_deduplication_window = 10000;
CREATE TABLE guarded.pages (page String, title String) ENGINE = ReplacingMergeTree ORDER BY page;
CREATE DICTIONARY guarded.pages_dict (page String, title String DEFAULT '') PRIMARY KEY page
SOURCE(CLICKHOUSE(DB 'guarded' TABLE 'pages')) LAYOUT(COMPLEX_KEY_HASHED()) LIFETIME(0);
CREATE TABLE guarded.daily (day Date, page LowCardinality(String), hits UInt64, ms UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMMDD(day) ORDER BY (day, page) SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW guarded.daily_mv TO guarded.daily DEFINER = CURRENT_USER SQL SECURITY DEFINER AS
SELECT toDate(at) AS day, page, count() AS hits, sum(ms) AS ms FROM guarded.hits GROUP BY day, page;
CREATE TABLE guarded.titled (at DateTime('UTC'), title String)
ENGINE = MergeTree PARTITION BY toYYYYMMDD(at) ORDER BY at SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW guarded.titled_mv TO guarded.titled AS
SELECT at, dictGetOrDefault('guarded.pages_dict', 'title', tuple(toString(page)), 'none') AS title FROM guarded.hits;
CREATE TABLE guarded.monthly (month Date, titles UInt64)
ENGINE = SummingMergeTree PARTITION BY toYYYYMM(month) ORDER BY month SETTINGS non_replicated_deduplication_window = 10000;
CREATE MATERIALIZED VIEW guarded.monthly_mv TO guarded.monthly AS
SELECT toStartOfMonth(at) AS month, count() AS titles FROM guarded.titled WHERE title NOT IN (SELECT title FROM guarded.pages WHERE page = '9') GROUP BY month;
CREATE TABLE guarded.top (page String, hits UInt64) ENGINE = MergeTree ORDER BY page;
CREATE MATERIALIZED VIEW guarded.top_mv REFRESH EVERY 1 YEAR TO guarded.top AS
SELECT toString(page) AS page, sum(hits) AS hits FROM guarded.daily GROUP BY page;
CREATE VIEW guarded.overview AS SELECT day, sum(hits) AS hits FROM guarded.daily GROUP BY day;
"""
SETTINGS = """version: 1
sources:
  guarded.hits: {event_time: at, arrival: arrived, landing: {path: landing, format: jsonl}}
"""
# What a server asks for that is set up as its own sample configuration says; without it, everybody may read `system` and use any engine.
STRICT = "".join(
    f"<{name}>true</{name}>"
    for name in (
        "select_from_system_db_requires_grant", "select_from_information_schema_requires_grant", "table_engines_require_grant",
        "on_cluster_queries_require_cluster_grant",
    )
)  # fmt: skip
DAY = "2026-11-10"
WINDOW = Window(datetime(2026, 11, 10, tzinfo=timezone.utc), datetime(2026, 11, 11, tzinfo=timezone.utc))
HITS, DAILY, TITLED = QName("guarded", "hits"), QName("guarded", "daily"), QName("guarded", "titled")
INSERT = f"INSERT INTO guarded.hits (at, page, ms) SELECT toDateTime('{DAY} 10:00:00', 'UTC') + number, toString(number % 3), number FROM numbers(100)"


class SeesLessError(Exception):
    """A part that works, but on what the account may see only."""


class DeniedError(Exception):
    """A command that was refused for lack of a right, with what it printed."""


@dataclass
class PrivilegeSite:
    """The folder, the server and its accounts."""

    folder: Path
    info: EngineInfo
    pipeline: Pipeline
    batches: int = 0
    columns: int = 0
    user: str = ""  # instead of the account's own
    secret: str = "pw-"  # begins every password

    def server(self, account: Account | None) -> Server:
        user, password = (
            (self.user or f"chmv_{account}", self.secret and f"{self.secret}{account}") if account else ("default", "")
        )
        return Server(Endpoint(self.info.url, user, password))

    def chmv(self, account: Account, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """A command under an account."""
        env = {
            "CHMV_CLICKHOUSE_URL": self.info.url, "CHMV_CLICKHOUSE_USER": self.user or f"chmv_{account}", "CHMV_CLICKHOUSE_PASSWORD": self.secret and f"{self.secret}{account}",
            "CHMV_DDL_DIR": str(self.folder / "ddl"), "CHMV_CACHE_DIR": str(self.folder / "cache"),
        }  # fmt: skip
        result = CliRunner().invoke(main, list(arguments), env=env)
        if result.exit_code in codes:
            if "ACCESS_DENIED" not in result.output:
                return result.output
            raise DeniedError(result.output) if result.exit_code else SeesLessError
        if "ACCESS_DENIED" in result.output:
            raise DeniedError(result.output)
        raise AssertionError(f"chmv {' '.join(arguments)}: {result.exit_code}\n{result.output}") from result.exception

    def admin(self, sql: str) -> None:
        with self.server(None) as server:
            server.command(sql)


@dataclass(frozen=True)
class Variant:
    """An account without one privilege of one grant."""

    account: Account
    user: str
    taken: str
    grants: Sequence[Grant]


def variants_of(pipeline: Pipeline, account: Account) -> list[Variant]:
    grants = list(all_grants(pipeline, account))
    found: list[Variant] = []
    for at, grant in enumerate(grants):
        for taken in grant.privileges:
            rest = tuple(one for one in grant.privileges if one != taken)
            left = [Grant(on=grant.on, privileges=rest, why="")] if rest else []
            user = f"{account}_without_{len(found)}"
            found.append(Variant(account, user, f"{taken} ON {grant.on}", [*grants[:at], *left, *grants[at + 1 :]]))
    return found


def write_users(folder: Path, accounts: Sequence[tuple[Account, str, Sequence[Grant]]], secret: str = "pw-") -> None:
    """A users file as `chmv grants --format users_xml` prints it, with passwords."""
    text = render_users_xml(accounts)
    for account, _, _ in accounts:
        text = text.replace("0" * 64, hashlib.sha256((secret and f"{secret}{account}").encode()).hexdigest(), 1)
    users, config = folder / "engine" / "config" / "users.d", folder / "engine" / "config" / "config.d"
    users.mkdir(parents=True)
    config.mkdir(parents=True)
    (users / "chmv.xml").write_text(text)
    strict = f"<access_control_improvements>{STRICT}</access_control_improvements>"
    (config / "strict.xml").write_text(f"<clickhouse>{strict}</clickhouse>")


def open_site(folder: Path, with_variants_of: Sequence[Account] = (), secret: str = "pw-") -> PrivilegeSite:
    """A new server with the accounts, and on demand with every variant of some of them; without `secret` nobody has a password."""
    ddl = folder / "ddl"
    (ddl / "landing").mkdir(parents=True)
    (ddl / "all.sql").write_text(DDL)
    (ddl / "chmv.yaml").write_text(SETTINGS)
    pipeline = load_pipeline(ddl, cache=folder / "cache").require_sound()
    accounts = [(account, f"chmv_{account}", all_grants(pipeline, account)) for account in ACCOUNTS]
    for account in with_variants_of:
        accounts += [(account, one.user, one.grants) for one in variants_of(pipeline, account)]
    write_users(folder, accounts, secret)
    info = start_engine(EngineOptions(data_dir=folder / "engine"))
    with Server(Endpoint(info.url)) as server:
        server.command("SYSTEM FLUSH LOGS")  # the tables of the logs come with their first rows
    return PrivilegeSite(folder, info, pipeline, secret=secret)


def close_site(site: PrivilegeSite) -> None:
    stop_engine(site.folder / "engine")
    shutil.rmtree(site.folder, ignore_errors=True)


def all_grants(pipeline: Pipeline, account: Account) -> Sequence[Grant]:
    return build_grants(pipeline.catalog, account, landing_sources(pipeline))
