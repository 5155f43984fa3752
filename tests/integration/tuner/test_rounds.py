"""What the tuner does on the real server apart from a storm: over-correction, death, modes, events, drift, and the command."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import pytest
from click.testing import CliRunner
from tuner_site import TunerSite

from chmv_assets.cli.main import main
from chmv_assets.core.names import QName
from chmv_assets.core.thresholds import Limits
from chmv_assets.core.tuner import GRACE_SECONDS, Action, Tunable, decide
from chmv_assets.core.tunings import DELAY, MAX_DELAY, PARALLELISM
from chmv_assets.deploy import make_plan
from chmv_assets.drift import read_drift
from chmv_assets.tunables import own_tunings
from resources.clickhouse import Server
from resources.executor import Executor
from resources.tuning_reads import fetch_ceiling, read_sample

WATCH = 60.0 if os.environ.get("CHMV_THOROUGH") else 5.0


class Died(BaseException):
    """The tuner's process is gone."""


class DyingExecutor(Executor):
    """Dies at its ALTER: before it, or after it and before anybody is told."""

    after: bool = False

    def set_table_setting(self, name: QName, setting: str, value: int | None) -> None:
        if self.after:
            super().set_table_setting(name, setting, value)
        raise Died


def pressed(site: TunerSite) -> None:
    """Thirty parts that nobody merges, of the forty from which inserts are delayed."""
    site.command("SYSTEM STOP MERGES {db}.events")
    for number in range(30):
        site.command(f"INSERT INTO {{db}}.events SETTINGS async_insert = 0 VALUES (now(), {number + 1})")


def test_over_correction_is_taken_back_within_the_watch(site: TunerSite) -> None:
    site.fill_pool()
    before, unset = site.engine_of(), site.engine_of("plain")
    tuner = site.tuner(Limits(tuner_watch=WATCH))
    applied = tuner.act([site.halve(), site.halve("plain", 1000)])
    assert "parts_to_delay_insert = 20" in site.engine_of() and "parts_to_delay_insert = 500" in site.engine_of("plain")
    site.empty_pool()  # merges have nothing to do any more: writers are slowed for nothing
    started = time.time()
    ended = tuner.watch(applied)
    took = time.time() - started
    print(f"\npool {[f'{one.pool_share:.0%}' for one in tuner.samples]}, back after {took:.1f} s")
    assert [one.status for one in ended] == ["rolled_back"] * 2 and "over-correction" in ended[0].reason
    assert took < min(WATCH, 60)
    assert (site.engine_of(), site.engine_of("plain")) == (before, unset)  # RESET where it was not set


def test_a_pool_that_stays_busy_settles_it(site: TunerSite) -> None:
    site.fill_pool()
    tuner = site.tuner(Limits(tuner_watch=1))
    assert [one.status for one in tuner.watch(tuner.act([site.halve()]))] == ["settled"]
    assert "parts_to_delay_insert = 20" in site.engine_of()
    assert tuner.act([site.halve()]) == []  # decided by old numbers: it is 20 by now
    site.empty_pool()


@pytest.mark.parametrize("death", ["before the ALTER", "after the ALTER", "during the watch"])
def test_what_a_killed_tuner_did_is_taken_back_by_the_next(site: TunerSite, death: str) -> None:
    before = site.engine_of()
    if death == "during the watch":
        site.tuner(Limits()).act([site.halve()])
    else:
        executor = DyingExecutor(site.server, log=lambda _line: None)
        executor.after = death == "after the ALTER"
        with pytest.raises(Died):
            site.tuner(Limits(), executor).act([site.halve()])
    assert ("parts_to_delay_insert = 20" in site.engine_of()) is (death != "before the ALTER")
    following = site.tuner(Limits())
    tables = [Tunable(table=one) for one in following.tables]
    for seconds, ends in ((0.0, 0), (Limits().tuner_watch + GRACE_SECONDS + 1, 1)):
        sample = read_sample(site.server, following.tables, time.time() + seconds)
        decision = decide([sample], following.store.read(following.tables), tables, now=sample.at, limits=Limits())
        assert len(decision.backs) == ends, decision
    assert [one.status for one in following.end(decision.backs)] == ["rolled_back"]
    assert site.engine_of() == before
    assert [row[1:] for row in site.tunings()] == [(DELAY, 40, 20, "rolled_back")]


def test_what_somebody_else_has_set_since_is_left(site: TunerSite) -> None:
    tuner = site.tuner(Limits())
    tuner.act([site.halve()])
    site.command("ALTER TABLE {db}.events MODIFY SETTING parts_to_delay_insert = 33")
    assert [one.status for one in tuner.roll_back(tuner.store.read(tuner.tables), "test")] == ["left"]
    assert "parts_to_delay_insert = 33" in site.engine_of()


def test_steps_of_one_setting_are_taken_back_in_reverse(site: TunerSite) -> None:
    before, tuner = site.engine_of(), site.tuner(Limits())
    longer = Action(subject=site.name("events"), setting=MAX_DELAY, expected=1, base=1, value=2, reason="")
    for action in (site.halve(), site.halve(expected=20), longer):
        assert tuner.act([action])
    assert "max_delay_to_insert = 2" in site.engine_of() and "parts_to_delay_insert = 10" in site.engine_of()
    assert [one.value for one in tuner.roll_back(tuner.store.read(tuner.tables), "test")] == [2, 10, 20]
    assert site.engine_of() == before


def test_our_own_pace_is_bounded_by_the_journal(site: TunerSite) -> None:
    tuner, source = site.tuner(Limits()), site.name("events")
    assert fetch_ceiling(site.server, source) is None
    slower = Action(subject=source, setting=PARALLELISM, expected=8, base=8, value=4, reason="")
    before = site.engine_of()
    tuner.act([slower])
    assert fetch_ceiling(site.server, source) == 4 and site.engine_of() == before
    tuner.roll_back(tuner.store.read(tuner.tables), "test")
    assert fetch_ceiling(site.server, source) is None


@pytest.mark.parametrize("site", ["off", "dry_run", "on"], indirect=True)
def test_the_sensor_changes_nothing_unless_it_is_on(site: TunerSite, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = site.pipeline.settings.tuner
    pressed(site)
    site.fill_pool()
    asked: list[str] = []
    rows = Server.rows

    def counted(self: Server, sql: str, *arguments: Any, **options: Any) -> list[tuple[Any, ...]]:
        asked.append(sql)
        return rows(self, sql, *arguments, **options)

    before, site.moment = site.engine_of(), time.time() - 300
    monkeypatch.setattr(Server, "rows", counted)
    ticks = [site.tick() for _ in range(10)]
    monkeypatch.undo()
    monkeypatch.setenv("CHMV_CLICKHOUSE_URL", site.server.endpoint.url)
    assert len(asked) == (0 if mode == "off" else 30)
    said, requests = ticks[-1].skip_message or "", ticks[-1].run_requests
    assert not any(tick.run_requests for tick in ticks[:-2]), "a window is not covered yet"
    assert site.engine_of() == before and site.tunings() == []
    if mode == "off":
        assert "tuner: off" in said and not requests
    elif mode == "dry_run":
        assert f"would do: {site.database}.events: parts_to_delay_insert 40 → 20" in said and not requests
    else:
        assert len(requests) == 1 and requests[0].tags["chmv/steps"] == "1"
        carry_out_and_tell(site, requests[0].run_config, before)
    site.empty_pool()


def carry_out_and_tell(site: TunerSite, run_config: Any, before: str) -> None:
    """The run of a tick: events on the table's page, no drift, an empty plan, and all of it taken back by hand."""
    job = site.definitions.resolve_job_def("tuner_job")
    result = job.execute_in_process(instance=site.instance, run_config=run_config)
    assert result.success and "parts_to_delay_insert = 20" in site.engine_of()
    found = [
        record.asset_observation for record in site.instance.fetch_observations(site.key("events"), limit=5).records
    ]
    told = {one.metadata["chmv/tuning"].value: one.metadata for one in found if one is not None}
    assert set(told) == {"applied", "settled"}
    page = told["applied"]
    assert [page[f"chmv/{name}"].value for name in ("setting", "before", "after")] == [DELAY, "40", "20"]
    assert page["chmv/numbers"].value["parts_average"] == 30 and page["chmv/numbers"].value["pool_average"] > 0.8
    comparison = read_drift(site.server, site.pipeline.catalog, {}).comparisons[site.name("events")]
    assert comparison.state == "equal" and [(one.what, one.live) for one in comparison.tuned] == [(f"setting {DELAY}", "20")]  # fmt: skip
    assert make_plan(site.server, site.pipeline).is_empty
    run, ddl = CliRunner(), ["--ddl", str(site.folder)]
    drift = run.invoke(main, ["drift", *ddl])
    assert drift.exit_code == 0 and f"{site.database}.events (setting {DELAY}: 20)" in drift.output.replace("\n", " ")
    dry = run.invoke(main, ["tune", "--dry-run", "--rollback", *ddl])
    assert dry.exit_code == 0 and "would take back" in dry.output and "= 20" in site.engine_of()
    shown = json.loads(run.invoke(main, ["tune", "--dry-run", "--json", *ddl]).output)
    assert [one["status"] for one in shown["active"] if one["subject"] == f"{site.database}.events"] == ["settled"]
    assert shown["samples"][0]["tables"][f"{site.database}.events"]["parts"] == 30
    back = run.invoke(main, ["tune", "--rollback", *ddl])
    assert back.exit_code == 0 and "rolled_back" in back.output, back.output
    assert site.engine_of() == before
    site.command(
        "ALTER TABLE {db}.events MODIFY SETTING parts_to_delay_insert = 20"
    )  # now by a stranger: that is drift
    assert read_drift(site.server, site.pipeline.catalog, {}).comparisons[site.name("events")].state == "changed"


def test_a_run_takes_no_order_but_the_sensor_s(site: TunerSite) -> None:
    job = site.definitions.resolve_job_def("tuner_job")
    config = {"ops": {"tune": {"config": {"order": "[]"}}}}
    assert not job.execute_in_process(instance=site.instance, run_config=config, raise_on_error=False).success
    assert site.tunings() == []


def test_tunings_of_other_folders_are_not_ours(site: TunerSite) -> None:
    site.command("CREATE TABLE {db}.theirs (n UInt64) ENGINE = MergeTree ORDER BY n")
    tuner = site.tuner(Limits())
    tuner.act([site.halve("theirs", 1000)])
    ours, theirs = own_tunings(site.pipeline, tuner.store.read()), tuner.store.read([site.name("theirs")])
    assert [one.status for one in theirs] == ["applied"] and theirs[0] not in ours
