"""What a deployment refuses, says and leaves alone."""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import pytest
from click.testing import CliRunner, Result
from deploy_changes import CHANGES
from deploy_stage import ALL, Stage

from chmv_assets.cli.main import main
from chmv_assets.core.deploy.deploy_journal import DEPLOY_LOCK
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.names import QName
from chmv_assets.definitions import build_definitions
from chmv_assets.deploy import make_rollback, open_applier
from resources.clickhouse_resource import ClickHouseResource
from resources.deploy import DeployStore
from resources.deployed import fetch_deployed
from resources.engine import EngineInfo
from resources.journal import Journal


def chmv(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


def test_what_needs_permission_is_refused_without(stage: Stage) -> None:
    CHANGES["changed_filter"](stage)
    plan = stage.plan()
    applier = open_applier(stage.server, lambda _line: None)
    with pytest.raises(
        DeployRefused, match=r"large_mv is marked `rewrites data` but wanted permission .*--allow-rewrite"
    ):
        applier.apply(plan)
    CHANGES["removed_column"](stage)
    with pytest.raises(DeployRefused, match=r"monthly is marked `destructive` .*--allow-destructive"):
        applier.apply(stage.plan(), ("rewrites data",))


def test_a_folder_of_any_size_is_deployed_and_taken_back(stage: Stage) -> None:
    """A bound parameter has 128 KiB at most; a plan holds the whole folder."""
    for number in range(10):
        stage.files[f"9{number}_long"] = (
            f"CREATE TABLE {{db}}.long_{number} (x UInt8) ENGINE = MergeTree ORDER BY x COMMENT '{'long ' * 4000}';"
        )
    applied = stage.apply(stage.plan())
    assert applied.units == 10 and stage.plan().is_empty
    assert [one.deploy_id for one in DeployStore(Journal(stage.server)).read(1)] == [applied.deploy_id]
    back = make_rollback(stage.server)
    assert {change.action for change in back.changes} == {"drop"} and len(back.changes) == 10


def test_a_rollback_does_not_bring_back_what_somebody_did_by_hand(stage: Stage) -> None:
    """The soak found it: the target of a view that had been altered by hand was computed anew by that query, from all of the source."""
    database = stage.database
    stage.apply(stage.plan())  # an empty plan: now the journal knows what is declared
    before = stage.server.rows(f"SELECT count(), sum(amount) FROM {database}.large")
    stage.server.command(
        f"ALTER TABLE {database}.large_mv MODIFY QUERY SELECT id, ts, amount FROM {database}.src WHERE id = 0"
    )
    stage.server.command(f"DROP TABLE {database}.daily_mv SYNC")
    stage.files["99_new"] = "CREATE TABLE {db}.new (x UInt8) ENGINE = MergeTree ORDER BY x;"
    plan = stage.plan()
    assert {change.name.table for change in plan.changes} == {"large_mv", "daily_mv", "new"}
    stage.apply(plan)
    back = make_rollback(stage.server)
    assert [(change.name.table, change.action) for change in back.changes] == [("new", "drop")] and not back.cutovers
    open_applier(stage.server, lambda _line: None).apply(back, ALL)
    assert stage.server.rows(f"SELECT count(), sum(amount) FROM {database}.large") == before
    del stage.files["99_new"]
    assert stage.plan().is_empty


def test_a_changed_view_is_fired_although_the_server_remembers_the_old_one(stage: Stage) -> None:
    rename_away(stage, "large_mv", "src")
    for view in ("daily_mv", "large_mv", "continents_mv"):
        stage.server.command(f"DETACH TABLE {stage.database}.{view} SYNC")
        stage.server.command(f"ATTACH TABLE {stage.database}.{view}")
    for target in ("daily", "monthly", "large", "continents"):
        stage.server.command(f"TRUNCATE TABLE {stage.database}.{target}")
    CHANGES["changed_filter"](stage)
    stage.apply(stage.plan())
    insert_large(stage, 100)
    assert stage.server.rows(f"SELECT count() FROM {stage.database}.large") == [(100,)]


def rename_away(stage: Stage, view: str, source: str) -> None:
    """What 26.7 does not get over: an altered view whose source is renamed away. The next one of that name is listed as hooked and not fired."""
    database, run = stage.database, stage.server.command
    ((select,),) = stage.server.rows(
        f"SELECT as_select FROM system.tables WHERE database = '{database}' AND name = '{view}'"
    )
    run(f"ALTER TABLE {database}.{view} MODIFY QUERY {select}")
    run(f"RENAME TABLE {database}.{source} TO {database}.away")
    run(f"CREATE TABLE {database}.{source} AS {database}.away")
    run(f"DROP TABLE {database}.away SYNC")


def drop_pipeline(stage: Stage) -> None:
    """The source and all that hangs on it, so that a deployment makes them anew."""
    views = ["large_mv", "daily_mv", "continents_mv", "monthly_mv"]
    for name in [*views, "daily", "monthly", "large", "continents", "src"]:
        stage.server.command(f"DROP TABLE {stage.database}.{name} SYNC")


def insert_large(stage: Stage, rows: int) -> None:
    stage.server.command(
        f"INSERT INTO {stage.database}.src (id, ts, country, kind, amount) SELECT number, toDateTime('2026-08-01 00:00:00', 'UTC'), 'DE', 1, 900 FROM numbers({rows})",
        settings={"async_insert": 0},
    )


def test_a_view_that_is_not_there_is_fired_although_the_server_remembers_one(stage: Stage) -> None:
    rename_away(stage, "large_mv", "src")
    stage.server.command(f"DROP TABLE {stage.database}.large_mv SYNC")
    for view in ("daily_mv", "continents_mv"):
        stage.server.command(f"DETACH TABLE {stage.database}.{view} SYNC")
        stage.server.command(f"ATTACH TABLE {stage.database}.{view}")
    for target in ("daily", "monthly", "large", "continents"):
        stage.server.command(f"TRUNCATE TABLE {stage.database}.{target}")
    insert_large(stage, 10)
    stage.apply(stage.plan())
    insert_large(stage, 100)
    assert stage.server.rows(f"SELECT count() FROM {stage.database}.large") == [(110,)]


def test_a_view_over_a_new_table_is_fired_although_the_server_remembers_one(stage: Stage) -> None:
    rename_away(stage, "large_mv", "src")
    drop_pipeline(stage)
    said: list[str] = []
    stage.apply(stage.plan(), log=said.append)
    assert len([line for line in said if "fires fewer views than it lists" in line]) >= 1
    insert_large(stage, 100)
    assert stage.server.rows(f"SELECT count() FROM {stage.database}.large") == [(100,)]


def test_a_first_deployment_needs_no_second_look(stage: Stage) -> None:
    drop_pipeline(stage)
    said: list[str] = []
    assert stage.apply(stage.plan(), log=said.append).gate_seconds == 0
    assert not [line for line in said if "fires fewer" in line or "could not be told" in line]


def test_a_detached_view_is_changed(stage: Stage) -> None:
    stage.server.command(f"DETACH TABLE {stage.database}.large_mv PERMANENTLY SYNC")
    CHANGES["changed_filter"](stage)
    stage.apply(stage.plan())
    assert stage.plan().is_empty
    stage.check()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_target_that_an_undeclared_view_writes_is_left_to_people(stage: Stage, elsewhere: bool) -> None:
    """Its rows are nothing that the declared views give: computed anew, the target would lack them."""
    home = f"{stage.database}_other" if elsewhere else stage.database
    stage.server.command(f"CREATE DATABASE IF NOT EXISTS {home}")
    stage.server.command(
        f"CREATE MATERIALIZED VIEW {home}.extra_mv TO {stage.database}.large AS SELECT id, ts, amount FROM {stage.database}.src WHERE amount <= 10"
    )
    CHANGES["changed_filter"](stage)
    plan = stage.plan()
    assert [(change.name.table, change.risk) for change in plan.changes] == [("large_mv", "manual")]
    assert f"also written by {home}.extra_mv, which the folder does not declare" in plan.changes[0].why
    stage.server.command(f"DROP TABLE {home}.extra_mv SYNC")
    assert [change.risk for change in stage.plan().changes] == ["rewrites data"]


def test_what_an_unfinished_deployment_changes_is_pending_for_who_has_the_folder_of_before(stage: Stage) -> None:
    """A location with the old folder would put the old query back."""
    digests = {name: made.digest for name, made in stage.write().catalog.objects.items() if made.sql}
    CHANGES["changed_filter"](stage)
    store = DeployStore(Journal(stage.server))
    record = store.begin("feedbeef", stage.plan())
    seen = []
    for status in ("running", "failed"):
        record = store.note(record, status, 0, "")  # type: ignore[arg-type]
        seen.append({name.table for name in fetch_deployed(stage.server, digests).pending})
    store.note(record, "rolled_back", 0, "")
    assert seen == [{"large_mv"}, {"large_mv"}]
    assert fetch_deployed(stage.server, digests).pending == frozenset()


@pytest.mark.parametrize("by_hand", ["MODIFY QUERY SELECT id, ts, amount FROM {db}.src WHERE id = 0", "dropped"])
def test_a_rollback_of_a_changed_view_goes_to_what_was_declared_not_to_what_stood_there_by_hand(
    stage: Stage, by_hand: str
) -> None:
    """The soak found it: for some seconds readers had a target of the query that somebody had given the view by hand."""
    database, view = stage.database, f"{stage.database}.large_mv"
    stage.apply(stage.plan())  # an empty plan: now the journal knows what is declared
    before, files = stage.server.rows(f"SELECT count(), sum(amount) FROM {database}.large"), dict(stage.files)
    stage.server.command(
        f"DROP TABLE {view} SYNC" if by_hand == "dropped" else f"ALTER TABLE {view} {by_hand.format(db=database)}"
    )
    CHANGES["changed_filter"](stage)
    stage.apply(stage.plan())
    assert stage.server.rows(f"SELECT count(), sum(amount) FROM {database}.large") != before
    open_applier(stage.server, lambda _line: None).apply(make_rollback(stage.server), ALL)
    assert stage.server.rows(f"SELECT count(), sum(amount) FROM {database}.large") == before
    stage.files = files
    assert stage.plan().is_empty


def test_a_server_that_moved_is_refused(stage: Stage) -> None:
    CHANGES["changed_filter"](stage)
    plan = stage.plan()
    stage.server.command(f"ALTER TABLE {stage.database}.daily MODIFY COMMENT 'by hand'")
    with pytest.raises(DeployRefused, match="Somebody has changed it since"):
        stage.apply(plan)


def test_what_people_must_do_is_said(stage: Stage) -> None:
    stage.edit("10_source", ("ORDER BY id", "ORDER BY (country, id)"))
    (change,) = stage.plan().changes
    assert (change.risk, change.why) == ("manual", "ORDER BY of a table that no view can fill again")
    with pytest.raises(DeployRefused, match="cannot be changed by chmv"):
        stage.apply(stage.plan())


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ((("amount > 500", "amont > 500"),), "the server refuses it over a clone of .*amont"),
        (
            (("SELECT id, ts, amount", "SELECT id, ts, amount, kind"),),
            "column with name 'kind', which is not found in the target",
        ),
        ((("SELECT id, ts, amount", "SELECT ts, amount"),), "does not give id, a key of"),
    ],
)
def test_views_are_tried_first(stage: Stage, pairs: tuple[tuple[str, str], ...], said: str) -> None:
    before = stage.server.rows(
        f"SELECT create_table_query FROM system.tables WHERE database = '{stage.database}' ORDER BY name"
    )
    stage.edit("50_large", *pairs)
    with pytest.raises(DeployRefused, match=said):
        stage.apply(stage.plan())
    after = stage.server.rows(
        f"SELECT create_table_query FROM system.tables WHERE database = '{stage.database}' ORDER BY name"
    )
    assert before == after


def test_a_failure_behind_the_gate_brings_everything_back(stage: Stage) -> None:
    """The view cannot be created: rows, views and tables are the old ones when the gate opens."""
    for name in ("changed_order_by", "changed_filter"):
        before = dict(stage.files)
        with stage.writers("src"):
            CHANGES[name](stage)
            plan = stage.plan()
            broken = [
                dataclasses.replace(
                    one, switches=tuple(dataclasses.replace(s, after=s.after.replace("SELECT", "SELECT nothing_like_it,")) for s in one.switches)
                )
                for one in plan.cutovers
            ]  # fmt: skip
            if name == "changed_order_by":  # no view changes: let one fail all the same
                broken = [dataclasses.replace(one, switches=_bad_switch(stage)) for one in plan.cutovers]
            applier = open_applier(stage.server, lambda _line: None)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("resources.deploy.applier.check_views", lambda *_: None)
                with pytest.raises(Exception, match=r"nothing_like_it|UNKNOWN"):
                    applier.apply(dataclasses.replace(plan, cutovers=tuple(broken)), ALL)
        stage.files = before
        applier.apply(make_rollback(stage.server), ALL)  # nothing to change: it only closes what was begun
        stage.check()


def _bad_switch(stage: Stage) -> tuple[object, ...]:
    from chmv_assets.core.deploy.changes import Switch
    from chmv_assets.core.names import QName

    view = QName(stage.database, "daily_mv")
    (text,) = stage.server.rows(
        f"SELECT create_table_query FROM system.tables WHERE database = '{stage.database}' AND name = 'daily_mv'"
    )
    after = f"CREATE MATERIALIZED VIEW {view.sql} TO {stage.database}.daily AS SELECT nothing_like_it FROM {stage.database}.src"
    return (Switch(view=view, before=str(text[0]), after=after, session=stage.database),)


def test_impact_names_readers_of_a_column_and_sizes(stage: Stage) -> None:
    CHANGES["column_through_the_chain"](stage)
    plan = stage.plan()
    said = {(one.name.table, one.how) for one in plan.impacts}
    assert ("daily_mv", f"column channel of {stage.database}.src is read by its web") in said
    (daily,) = [one for one in plan.impacts if one.name.table == "daily" and one.how == "computed anew"]
    assert daily.partitions == 4 and daily.rows > 0 and daily.size > 0
    assert [one.targets for one in plan.cutovers] == [tuple(plan.cutovers[0].targets)] and len(
        plan.cutovers[0].targets
    ) == 2


def test_commands(stage: Stage, configured: EngineInfo, tmp_path: Path) -> None:
    stage.write()
    folder, out = str(stage.folder), tmp_path / "plan.json"
    assert chmv("plan", "--ddl", folder).exit_code == 0
    CHANGES["changed_filter"](stage)
    stage.write()
    planned = chmv("plan", "--ddl", folder, "--out", str(out), "--steps")
    assert planned.exit_code == 2 and "rewrites data" in planned.output and "shut gate" in planned.output, (
        planned.output
    )
    assert json.loads(chmv("plan", "--ddl", folder, "--json").stdout)["risk"] == "rewrites data"
    refused = chmv("apply", str(out))
    assert refused.exit_code == 1 and "--allow-rewrite" in refused.output
    Journal(stage.server).locks.acquire(DEPLOY_LOCK, "one who died", lease_seconds=2.5)
    done = chmv("apply", str(out), "--allow-rewrite", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("waiting, ") == 1 and "for one who died#" in done.stderr
    deploy = json.loads(done.stdout)["deploy_id"]
    assert chmv("plan", "--ddl", folder).exit_code == 0
    listed = json.loads(chmv("deploys", "--json").stdout)["deploys"][0]
    assert (listed["deploy_id"], listed["status"], listed["changes"]) == (
        deploy,
        "done",
        [f"{stage.database}.large_mv"],
    )
    assert f"{stage.database}.large_mv" in chmv("rollback", deploy, "--dry-run").output
    assert chmv("rollback", deploy, "--allow-rewrite").exit_code == 0
    assert [one["status"] for one in json.loads(chmv("deploys", "--json").stdout)["deploys"][:2]] == [
        "rolled_back",
        "done",
    ]
    assert chmv("apply", "--resume").exit_code == 1
    assert chmv("apply").exit_code == 2


def test_kept_tables_are_swept_after_their_soak(stage: Stage) -> None:
    CHANGES["changed_filter"](stage)
    applied = stage.apply(stage.plan())
    applier = open_applier(stage.server, lambda _line: None)
    assert set(applied.kept).isdisjoint(applier.store.sweep(applier.executor, 3600.0)) and applied.kept
    assert set(applied.kept) <= set(applier.store.sweep(applier.executor, -1.0))


def _note_age(stage: Stage, deploy: str, days: int, status: str = "done") -> None:
    """The journal's word of a deployment, as if it was of some days ago."""
    stage.server.command(
        "INSERT INTO chmv.deploys (deploy_id, plan_id, status, step, detail, plan, owner, version, updated_at) SELECT deploy_id, plan_id, "
        f"'{status}', step, detail, plan, owner, version + 1, now64(6) - INTERVAL {days} DAY FROM chmv.deploys FINAL WHERE deploy_id = '{deploy}'"
    )


def test_an_old_table_that_was_just_put_aside_is_kept_for_its_soak(stage: Stage, configured: EngineInfo) -> None:
    """The file of a table is as old as the table, whenever it was put aside."""
    ((path, uuid),) = stage.server.rows(
        f"SELECT metadata_path, toString(uuid) FROM system.tables WHERE database = '{stage.database}' AND name = 'large'"
    )
    assert configured.data_dir is not None
    (file,) = configured.data_dir.glob(f"**/{path}")
    age = time.time() - 8 * 86400
    os.utime(file, (age, age))
    stage.edit("50_large", ("ORDER BY id", "ORDER BY (id, ts)"))
    stage.write()
    out = stage.folder.parent / "plan.json"
    assert chmv("plan", "--ddl", str(stage.folder), "--out", str(out)).exit_code == 2
    done = chmv("apply", str(out), "--allow-rewrite", "--json", "--soak-hours", "168")
    assert done.exit_code == 0, done.output
    deploy = json.loads(done.stdout)["deploy_id"]
    aside = "SELECT toString(uuid), dateDiff('day', metadata_modification_time, now()) FROM system.tables WHERE database = 'chmv' AND name = {n:String}"
    assert stage.server.rows(aside, {"n": f"kept.{deploy}.{stage.database}.large"}) == [(uuid, 8)]


def test_only_what_ended_deployments_kept_is_swept(stage: Stage) -> None:
    CHANGES["changed_filter"](stage)
    applied = stage.apply(stage.plan())
    applier, kept = open_applier(stage.server, lambda _line: None), set(applied.kept)
    unknown = QName("chmv", f"kept.{secrets.token_hex(4)}.{stage.database}.large")
    stage.server.command(f"CREATE TABLE {unknown.sql} (x UInt8) ENGINE = MergeTree ORDER BY x")

    def swept(soak_days: int, just_applied: str = "") -> set[QName]:
        return {*kept, unknown} & set(applier.store.sweep(applier.executor, soak_days * 86400, just_applied))

    try:
        assert kept and swept(7) == set()
        for status in ("running", "failed"):
            _note_age(stage, applied.deploy_id, 30, status)
            assert swept(7) == set(), status
        _note_age(stage, applied.deploy_id, 8)
        assert swept(9) == set() and swept(7, applied.deploy_id) == set()
        assert swept(7) == kept
    finally:
        stage.server.command(f"DROP TABLE IF EXISTS {unknown.sql} SYNC")


def test_a_change_of_the_folder_is_pending_until_it_is_deployed(stage: Stage) -> None:
    def pending() -> set[str]:
        digests = {name: made.digest for name, made in stage.write().catalog.objects.items() if made.sql}
        standing = fetch_deployed(stage.server, digests)
        ended.append(standing.deployed_ms)
        return {name.table for name in standing.pending}

    ended: list[int] = []
    assert pending() == set()
    CHANGES["changed_filter"](stage)
    CHANGES["new_view_and_target"](stage)
    assert pending() == {"large_mv", "kinds", "kinds_mv"}
    stage.apply(stage.plan())
    assert pending() == set()
    assert 0 < ended[0] == ended[1] < ended[2], "when the deployment ended"


def test_empty_plan_is_noted_as_deployed(stage: Stage) -> None:
    stage.files["10_source"] = "-- another comment\n" + stage.files["10_source"].replace(
        "ENGINE = MergeTree", "engine=MergeTree()"
    )
    applied = stage.apply(stage.plan())
    assert applied.units == 0
    assert DeployStore(Journal(stage.server)).read(1)[0].deploy_id == applied.deploy_id


@pytest.fixture
def job(stage: Stage, configured: EngineInfo) -> Callable[..., dg.ExecuteInProcessResult]:
    def run(**config: bool) -> dg.ExecuteInProcessResult:
        definitions = build_definitions(stage.write())
        with dg.DagsterInstance.ephemeral() as instance:
            return definitions.resolve_job_def("deploy_job").execute_in_process(
                run_config={"ops": {"deploy": {"config": config}}}, instance=instance, raise_on_error=False,
                resources={"clickhouse": ClickHouseResource()},
            )  # fmt: skip

    return run


def test_deploy_job(stage: Stage, job: Callable[..., dg.ExecuteInProcessResult]) -> None:
    CHANGES["changed_filter"](stage)
    assert job().success  # a dry run unless said otherwise
    assert stage.plan().changes
    assert not job(dry_run=False).success
    done = job(dry_run=False, allow_rewrite=True)
    assert done.success
    assert [
        event.asset_observation_data.asset_observation.asset_key.path[-1]
        for event in done.get_asset_observation_events()
    ] == ["large_mv"]
    stage.check()
