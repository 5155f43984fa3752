"""Alerts: what is posted, to a real HTTP server on loopback, and what happens when it does not answer.

(No `from __future__ import annotations`: Dagster inspects the signatures of the small location here.)
"""

import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.settings import Settings
from chmv_assets.pipeline import Pipeline
from resources.webhook import send_alert
from sensors.alert_texts import ALERTS_PER_TICK, FOUND_BY, isolation_alerts
from sensors.alerts import CHECK_SENSOR, ISOLATION_SENSOR, RUN_SENSOR, build_alert_sensors

SECRET = "T000-very-secret"
DDL = "CREATE TABLE s.daily (day Date, hits UInt64) ENGINE = SummingMergeTree ORDER BY day"


@dataclass
class Hook:
    """A webhook that remembers what it got and answers as it is told to."""

    url: str = ""
    got: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)  # of the next answers; then 200
    content_types: list[str] = field(default_factory=list)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    made = Hook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            made.content_types.append(self.headers["Content-Type"])
            self.send_response(made.statuses.pop(0) if made.statuses else 200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_address[1]}/{SECRET}"
        monkeypatch.setenv("CHMV_ALERT_URL", made.url)
        monkeypatch.setenv("CHMV_UI_URL", "https://dagster.example")
        yield made
        server.shutdown()
        thread.join(10)


def pipeline() -> Pipeline:
    catalog = build_catalog([SourceFile(path="all.sql", text=DDL)]).require_sound()
    return Pipeline(catalog=catalog, settings=Settings(), ddl_dir=Path(), fingerprint="x")


@dg.asset(key=["s", "daily"], check_specs=[dg.AssetCheckSpec("is_right", asset=["s", "daily"])])
def daily() -> dg.MaterializeResult:  # type: ignore[type-arg]
    failed = dg.AssetCheckResult(passed=False, check_name="is_right", description="2 rows < 3 & counting")
    return dg.MaterializeResult(check_results=[failed])


@dg.asset(key=["other", "table"], check_specs=[dg.AssetCheckSpec("is_theirs", asset=["other", "table"])])
def foreign() -> dg.MaterializeResult:  # type: ignore[type-arg]
    return dg.MaterializeResult(check_results=[dg.AssetCheckResult(passed=False, check_name="is_theirs")])


@dg.op(name="recover", out=dg.Out(dg.Nothing))
def recover(context: dg.OpExecutionContext) -> None:
    if context.run.tags["chmv/damage"] == "breaks":
        raise RuntimeError("the server said <no>")
    context.add_output_metadata({"chmv/status": context.run.tags["outcome"]})


@dg.job(name="recovery_job", executor_def=dg.in_process_executor)
def recovery_job() -> None:
    recover()


@dataclass
class Site:
    """The sensors, an instance and their cursors."""

    definitions: dg.Definitions
    instance: dg.DagsterInstance
    cursors: dict[str, str | None] = field(default_factory=dict)

    def tick(self, name: str) -> Any:
        sensor = self.definitions.resolve_sensor_def(name)
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(name), definitions=self.definitions
        ) as context:
            data = sensor.evaluate_tick(context)
        self.cursors[name] = data.cursor
        return data

    def repair(self, damage: str, outcome: str = "repaired") -> None:
        tags = {"chmv/subject": "s.daily_mv", "chmv/damage": damage, "outcome": outcome}
        self.definitions.resolve_job_def("recovery_job").execute_in_process(
            instance=self.instance, tags=tags, raise_on_error=False
        )

    def check(self, asset: dg.AssetsDefinition) -> None:
        assert dg.materialize([asset], instance=self.instance).success


@pytest.fixture(params=["memory", "SQLite"])
def site(hook: Hook, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    definitions = dg.Definitions(
        assets=[daily, foreign], jobs=[recovery_job], sensors=build_alert_sensors(pipeline(), running=True)
    )
    made = dg.DagsterInstance.ephemeral() if request.param == "memory" else dg.DagsterInstance.local_temp(str(tmp_path))
    with made as instance:
        yield Site(definitions, instance)


def test_without_an_address_there_are_no_sensors() -> None:
    assert build_alert_sensors(pipeline(), running=True, environ={}) == []
    assert build_alert_sensors(pipeline(), running=True, environ={"CHMV_ALERT_URL": "  "}) == []


def test_a_failed_run_is_told_once_with_its_subject_and_error(site: Site, hook: Hook) -> None:
    site.tick(RUN_SENSOR)
    site.repair("breaks")
    site.tick(RUN_SENSOR)
    site.tick(RUN_SENSOR)
    (alert,) = hook.got
    assert (alert["event"], alert["subject"], alert["job"]) == ("run_failure", "s.daily_mv", "recovery_job")
    assert alert["text"].startswith("recovery_job of s.daily_mv failed: ")
    assert "the server said &lt;no&gt;" in alert["text"]
    assert "<no>" in alert["error"]
    assert alert["tags"]["damage"] == "breaks"
    assert alert["url"] == f"https://dagster.example/runs/{alert['run_id']}"
    assert set(alert) >= {"event", "location", "subject", "text", "url"}
    assert hook.content_types == ["application/json; charset=utf-8"]


def test_a_run_that_went_well_is_not_told(site: Site, hook: Hook) -> None:
    for sensor in (RUN_SENSOR, ISOLATION_SENSOR):
        site.tick(sensor)
    site.repair("dropped")
    for sensor in (RUN_SENSOR, ISOLATION_SENSOR):
        site.tick(sensor)
    assert hook.got == []


def test_an_isolated_view_is_told_once_and_its_probes_are_not(site: Site, hook: Hook) -> None:
    site.repair("throws", "isolated")  # before the first tick: somebody has seen that already
    site.tick(ISOLATION_SENSOR)
    site.repair("throws", "isolated")
    site.repair("probe", "isolated")
    for _ in range(3):
        site.tick(ISOLATION_SENSOR)
    assert [(one["event"], one["subject"]) for one in hook.got] == [("view_isolated", "s.daily_mv")]


def test_failed_checks_of_ours_are_told_once_from_the_first_tick_on(site: Site, hook: Hook) -> None:
    site.check(daily)
    assert "begins here" in site.tick(CHECK_SENSOR).skip_message
    assert hook.got == []
    site.check(daily)
    site.check(foreign)
    assert site.tick(CHECK_SENSOR).skip_message == "1 check(s) evaluated, 1 failed"  # and not the others'
    assert "0 check(s)" in site.tick(CHECK_SENSOR).skip_message
    (alert,) = hook.got
    assert (alert["event"], alert["subject"], alert["check"], alert["severity"]) == (
        "check_failure",
        "s.daily",
        "is_right",
        "ERROR",
    )
    assert alert["text"] == "check is_right of s.daily failed: 2 rows &lt; 3 &amp; counting"
    assert alert["url"] == "https://dagster.example/assets/s/daily?view=checks&checkDetail=is_right"


def test_a_failed_check_whose_finder_alerts_by_itself_is_not_told_again(site: Site, hook: Hook) -> None:
    site.check(daily)
    site.tick(CHECK_SENSOR)
    site.instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=dg.AssetKey(["s", "daily"]),
            check_name="is_right",
            passed=False,
            metadata={FOUND_BY: "drift_sensor"},
        )
    )
    assert site.tick(CHECK_SENSOR).skip_message == "1 check(s) evaluated, 0 failed"
    assert hook.got == []


def test_many_failed_checks_are_a_few_alerts(site: Site, hook: Hook) -> None:
    site.tick(CHECK_SENSOR)
    for _ in range(ALERTS_PER_TICK + 2):
        site.check(daily)
    site.tick(CHECK_SENSOR)
    assert len(hook.got) == ALERTS_PER_TICK
    assert hook.got[-1]["text"].startswith("3 more checks failed: s.daily:is_right")


def test_a_webhook_that_fails_is_told_in_the_tick_and_the_tick_goes_on(
    site: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resources.webhook.RETRY_AFTER_SECONDS", 0.0)
    for sensor in (RUN_SENSOR, CHECK_SENSOR):
        site.tick(sensor)
    site.repair("breaks")
    site.check(daily)
    hook.statuses = [500] * 4
    told = [site.tick(sensor).skip_message for sensor in (RUN_SENSOR, CHECK_SENSOR)]
    assert all("status 500, tried 2 times" in one for one in told), told
    assert len(hook.got) == 4


def test_a_second_try_after_a_moment_is_enough(hook: Hook) -> None:
    slept: list[float] = []
    hook.statuses = [503]
    assert send_alert({"text": "x"}, sleep=slept.append) == ""
    assert (len(hook.got), slept) == (2, [1.0])


def test_an_address_that_is_wrong_is_not_tried_again(hook: Hook) -> None:
    hook.statuses = [404]
    assert send_alert({"text": "x"}) == "the webhook answered with status 404"
    assert len(hook.got) == 1


@pytest.mark.parametrize(
    "url",
    [
        f"http://127.0.0.1:9/{SECRET}", f"ftp://h/{SECRET}", f"file:///{SECRET}", f"http://127.0.0.1:nine/{SECRET}",
        f"http://[broken/{SECRET}", f"http://127.0.0.1:9/a b\n{SECRET}", SECRET, f"http://no-such-host.invalid/{SECRET}",
    ],
)  # fmt: skip
def test_no_part_of_the_address_is_in_what_is_told(url: str) -> None:
    problem = send_alert({"text": "x"}, {"CHMV_ALERT_URL": url}, sleep=lambda _seconds: None)
    assert problem
    assert not any(part in problem for part in (SECRET, "127.0.0.1", "invalid", "broken"))


def test_a_webhook_that_does_not_answer_costs_its_timeout_and_no_more() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/{SECRET}"
        problem = send_alert({"text": "x"}, {"CHMV_ALERT_URL": url}, timeout_seconds=0.2, sleep=lambda _seconds: None)
    assert problem == "the webhook could not be reached (TimeoutError), tried 2 times"


def test_isolations_that_are_too_many_for_one_tick_are_told_together() -> None:
    runs = [dg.DagsterRun(job_name="recovery_job", tags={"chmv/subject": f"d.view_{n}"}) for n in range(ALERTS_PER_TICK + 2)]  # fmt: skip
    alerts = isolation_alerts(runs)
    assert len(alerts) == ALERTS_PER_TICK
    assert [alert["subject"] for alert in alerts] == ["d.view_0", "d.view_1", "d.view_2", "3 views"]
    assert "3 more views are isolated: d.view_3, d.view_4, d.view_5" in alerts[-1]["text"]
    assert alerts[-1]["views"] == ["d.view_3", "d.view_4", "d.view_5"]
