"""Laws of plans on the real server: nothing to do after an apply, whatever was there before; there and back again is where it began."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from chmv_assets.deploy import make_plan, open_applier
from chmv_assets.pipeline import Pipeline, load_pipeline
from resources.clickhouse import Server
from resources.reconcile import Reconciler

EXAMPLES = 40 if os.environ.get("CHMV_THOROUGH") else 2
DIMENSIONS = {"country": "LowCardinality(String)", "kind": "UInt8", "device": "String"}
EXTRAS = {"note": "String DEFAULT 'none'", "score": "Float64", "tags": "Array(String)"}


@st.composite
def folders(draw: st.DrawFn) -> dict[str, str]:
    """A source and some targets, each with one view or two; a plain view and a dictionary at times."""
    extras = draw(st.lists(st.sampled_from(sorted(EXTRAS)), unique=True))
    columns = ["id UInt64", "ts DateTime('UTC')", *(f"{n} {k}" for n, k in DIMENSIONS.items()), "amount UInt32"]
    columns += [f"{name} {EXTRAS[name]}" for name in extras]
    comment = draw(st.sampled_from(["", " COMMENT 'it''s all'"]))
    files = {
        "1_source": f"CREATE TABLE {{db}}.src ({', '.join(columns)}) ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY id"
        f" SETTINGS non_replicated_deduplication_window = {draw(st.sampled_from([100, 200]))}{comment};"
    }
    for name in draw(st.lists(st.sampled_from(["a", "b", "c"]), unique=True, min_size=1)):
        files[f"2_{name}"] = _target(draw, name)
    if draw(st.booleans()):
        files["3_view"] = (
            f"CREATE VIEW {{db}}.shown AS SELECT id, ts FROM {{db}}.src WHERE amount > {draw(st.integers(0, 3))};"
        )
    if draw(st.booleans()):
        files["4_dictionary"] = (
            "CREATE DICTIONARY {db}.known (id UInt64, country String) PRIMARY KEY id SOURCE(CLICKHOUSE(DB '{db}' TABLE 'src')) "
            f"LAYOUT({draw(st.sampled_from(['HASHED()', 'FLAT()']))}) LIFETIME({draw(st.sampled_from(['0', 'MIN 10 MAX 20']))});"
        )
    return files


def _target(draw: st.DrawFn, name: str) -> str:
    dims = draw(st.lists(st.sampled_from(sorted(DIMENSIONS)), unique=True, min_size=1))
    partition = draw(st.sampled_from(["PARTITION BY toYYYYMM(day) ", "PARTITION BY day ", ""]))
    filtered = draw(st.sampled_from(["", " WHERE amount > 400", " WHERE kind = 1"]))
    factor = draw(st.sampled_from(["", " * 3"]))
    columns = ["day Date", *(f"{one} {DIMENSIONS[one]}" for one in dims), "events UInt64", "total UInt64"]
    keys = ", ".join(["day", *dims])
    return (
        f"CREATE TABLE {{db}}.{name} ({', '.join(columns)}) ENGINE = SummingMergeTree {partition}ORDER BY ({keys});\n"
        f"CREATE MATERIALIZED VIEW {{db}}.{name}_mv TO {{db}}.{name} AS SELECT toDate(ts) AS day, {', '.join(dims)}, count() AS events, "
        f"sum(amount{factor}) AS total FROM {{db}}.src{filtered} GROUP BY {keys};"
    )


def _load(folder: Path, files: dict[str, str], database: str) -> Pipeline:
    for old in folder.glob("*.sql"):
        old.unlink()
    for name, text in files.items():
        (folder / f"{name}.sql").write_text(text.replace("{db}", database), encoding="utf-8")
    return load_pipeline(folder)


def _deploy(server: Server, pipeline: Pipeline) -> None:
    plan = make_plan(server, pipeline)
    assert plan.risk != "manual", [(str(one.name), one.why) for one in plan.changes]
    open_applier(server, lambda _line: None).apply(plan, ("rewrites data", "destructive"))
    again = make_plan(server, pipeline)
    assert again.is_empty and not again.untold, [(str(one.name), one.differences) for one in again.changes]
    assert again.plan_id == make_plan(server, pipeline).plan_id
    for made in pipeline.catalog.objects.values():
        if made.kind == "materialized_view" and made.target is not None:
            found = Reconciler(server, pipeline.catalog, "UTC").run(pipeline.catalog.objects[made.target], None)
            assert found.status == "equal", (str(made.target), found.sentence())


@settings(
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # on a server, smaller is not worth the minutes
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=folders(), second=folders())
def test_there_and_back(server: Server, tmp_path: Path, first: dict[str, str], second: dict[str, str]) -> None:
    database = f"law_{secrets.token_hex(4)}"
    try:
        _deploy(server, _load(tmp_path, first, database))
        server.command(
            f"INSERT INTO {database}.src (id, ts, country, kind, device, amount) SELECT number, toDateTime('2026-07-30 00:00:00', 'UTC') + number * 60, "
            "toString(number % 3), number % 4, 'd', number % 1000 FROM numbers(3000)"
        )
        before = _texts(server, database)
        _deploy(server, _load(tmp_path, second, database))
        _deploy(server, _load(tmp_path, first, database))
        assert _texts(server, database) == before
    finally:
        server.command(f"DROP DATABASE IF EXISTS {database} SYNC")


def _texts(server: Server, database: str) -> dict[str, str]:
    rows = server.rows(
        "SELECT name, create_table_query FROM system.tables WHERE database = {d:String}", {"d": database}
    )
    return {str(name): str(text) for name, text in rows}


def test_nothing_to_do_for_the_demo(server: Server, tmp_path: Path) -> None:
    """The demo's own folder, deployed by chmv, is what it declares; formatting and comments do not count."""
    from chmv_assets.pipeline import DEMO_DDL

    folder = tmp_path / "ddl"
    folder.mkdir()
    database = f"shop_{secrets.token_hex(4)}"
    try:
        for path in DEMO_DDL.glob("*.sql"):
            text = (
                path.read_text(encoding="utf-8")
                .replace("shop.", f"{database}.")
                .replace("DB 'shop'", f"DB '{database}'")
            )
            (folder / path.name).write_text(
                text.replace("DATABASE IF NOT EXISTS shop", f"DATABASE IF NOT EXISTS {database}"), encoding="utf-8"
            )
        pipeline = load_pipeline(folder)
        _apply = open_applier(server, lambda _line: None).apply
        _apply(make_plan(server, pipeline), ("rewrites data",))
        for path in folder.glob("*.sql"):
            noisy = "/* noise */\n" + path.read_text(encoding="utf-8").replace(",\n", " ,\n\n").replace(
                "ENGINE =", "engine="
            )
            path.write_text(noisy, encoding="utf-8")
        again = make_plan(server, load_pipeline(folder))
        assert again.is_empty and not again.untold, [(str(one.name), one.differences) for one in again.changes]
    finally:
        server.command(f"DROP DATABASE IF EXISTS {database} SYNC")
