"""The documents around the metrics name what we export, and all of it: the page, the dashboard, the alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from chmv_assets.core.metrics import METRICS, MetricSpec, exposed_names
from chmv_assets.core.metrics_sql import SERVER_NUMBERS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana" / "chmv.json").read_text())
GROUPS: list[dict[str, Any]] = yaml.safe_load((DOCS / "prometheus" / "chmv.rules.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
EXPORTED: dict[str, MetricSpec] = {name: spec for spec in METRICS for name in exposed_names(spec)}
FUNCTIONS = {"absent", "count", "delta", "histogram_quantile", "increase", "max", "min", "rate", "sum", "time", "topk", "vector", "label_values"}  # fmt: skip
WORDS = {"by", "or", "and", "on", "unless", "bool"}
_TOKEN = re.compile(r'"[^"]*"|\[[0-9]+[smhd]\]|[A-Za-z_][A-Za-z0-9_]*|[0-9.]+|=~|!~|!=|==|<=|>=|[-+*/<>={}(),]|\s+')
_OPENING = {"(": ")", "{": "}"}


def panels() -> list[dict[str, Any]]:
    return [one for one in DASHBOARD["panels"] if one["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Where a PromQL expression stands, and the expression."""
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for rule in RULES:
        yield f"alert {rule['alert']}", rule["expr"]
    for line in re.findall(r"```\w*\n(max\(.*?)```", PAGE, re.S)[0].splitlines():
        yield "docs/metrics.md", line.partition(" #")[0]


def defects(expr: str) -> list[str]:
    """What is wrong with an expression, as far as it shows without Prometheus: spelling, brackets, names, labels."""
    plain = expr.replace('"$target"', '"x"')
    tokens = [match.group() for match in _TOKEN.finditer(plain)]
    found = [] if "".join(tokens) == plain else ["characters that PromQL does not have"]
    tokens = [token for token in tokens if not token.isspace()]
    open_brackets: list[str] = []
    metric: MetricSpec | None = None
    grouped: set[str] = set()
    used: list[MetricSpec] = []
    grouping = False
    for at, token in enumerate(tokens):
        after = tokens[at + 1] if at + 1 < len(tokens) else ""
        if token in _OPENING:
            open_brackets.append(_OPENING[token])
            grouping = token == "(" and at > 0 and tokens[at - 1] in ("by", "on")
        elif token in (")", "}"):
            if not open_brackets or open_brackets.pop() != token:
                found.append(f"a {token} that nothing opens")
            grouping = False
        elif re.match(r"[A-Za-z_]", token) and token not in WORDS:
            if grouping:
                grouped.add(token)
            elif open_brackets[-1:] == ["}"]:
                if metric is None or token not in metric.labels:
                    found.append(f"no label {token}")
            elif after == "(" or (token in FUNCTIONS and after == "by"):
                if token not in FUNCTIONS:
                    found.append(f"no function {token}")
            elif token in EXPORTED:
                metric = EXPORTED[token]
                used.append(metric)
            elif not (open_brackets and token in {label for spec in used for label in spec.labels}):
                found.append(f"no metric {token}")
    known = {label for spec in used for label in spec.labels} | {"le"}
    return [*found, *(["a bracket is left open"] if open_brackets else []), *(f"no label {one}" for one in sorted(grouped - known))]  # fmt: skip


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        ("sum by (part) (rate(chmv_collection_errors_total[5m]))", []),
        ("chmv_collection_errors > 0", ["no metric chmv_collection_errors"]),
        ("chmv_rebuild_duration_seconds > 0", ["no metric chmv_rebuild_duration_seconds"]),
        ('chmv_route{way="snapshot"}', ["no label way"]),
        ("sum by (where) (chmv_route)", ["no label where"]),
        ("max(chmv_up", ["a bracket is left open"]),
        ("quantil(chmv_up)", ["no function quantil"]),
    ],
)
def test_the_check_itself_finds_mistakes(expr: str, wanted: list[str]) -> None:
    assert defects(expr) == wanted


def test_every_expression_names_what_we_export() -> None:
    assert {(where, expr): defects(expr) for where, expr in expressions() if defects(expr)} == {}


def test_every_metric_is_explained_and_shown() -> None:
    told = dict(re.findall(r"^\| `(chmv_\w+)` \| (\w+) \|", PAGE, re.M))
    assert told == {spec.name: spec.kind for spec in METRICS}
    for spec in METRICS:
        assert f"{', '.join(f'`{label}`' for label in spec.labels) or '–'} | {spec.about} |" in PAGE, spec.name
    shown = " ".join(expr for where, expr in expressions() if where.startswith("panel"))
    hidden = [spec.name for spec in METRICS if not any(name in shown for name in exposed_names(spec))]
    assert hidden == ["chmv_watermark_timestamp_seconds"], "the lag is shown instead"


def test_names_follow_the_conventions() -> None:
    assert len({spec.name for spec in METRICS}) == len(METRICS)
    for spec in METRICS:
        assert re.fullmatch(r"chmv_[a-z_]+", spec.name)
        assert (spec.kind == "counter") == spec.name.endswith("_total"), spec.name
        assert spec.kind != "histogram" or spec.name.endswith("_seconds")
        assert not set(spec.labels) & {"partition", "window", "batch", "run", "le", "instance", "job"}
        assert spec.about.endswith(".")
    assert set(SERVER_NUMBERS) <= set(EXPORTED)


def test_panels_have_titles_units_and_the_data_source_of_the_variable() -> None:
    assert [one["name"] for one in DASHBOARD["templating"]["list"] if one["type"] == "datasource"] == ["datasource"]
    assert len({one["id"] for one in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["title"] and panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {json.dumps(one["datasource"]) for one in (panel, *panel["targets"])} == {'{"type": "prometheus", "uid": "${datasource}"}'}  # fmt: skip
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
    taken = [
        (panel["gridPos"]["y"] + down, panel["gridPos"]["x"] + across)
        for panel in DASHBOARD["panels"]
        for down in range(panel["gridPos"]["h"])
        for across in range(panel["gridPos"]["w"])
    ]
    assert len(taken) == len(set(taken)), "panels overlap"


def test_alerts_say_what_to_do() -> None:
    headings = {line.removeprefix("### ").lower() for line in PAGE.splitlines() if line.startswith("### ")}
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 20
    for rule in RULES:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"[0-9]+[mh]", rule["for"])
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/metrics.md"
        assert anchor in headings, anchor
        assert f"`{rule['expr']}`" in PAGE, "the page tells the same rule"
        labels = {label for spec in METRICS if spec.name in rule["expr"] for label in spec.labels}
        assert set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"]))) <= labels
