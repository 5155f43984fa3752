"""The page of results and the exponents: what is not measured is not on it."""

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import pytest

from bench.curves import Curve, fit
from bench.record import Record
from bench.run_all import QUICK, REST_SECONDS, render, rest


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    sizes = [10, 100, 1000, 2000]
    assert fit(sizes, [3 * size**power for size in sizes]) == pytest.approx(power)


def test_a_constant_share_does_not_hide_a_steep_end() -> None:
    curve = Curve("plan", "objects", tuple((size, 5 + (size / 400) ** 2) for size in (10, 100, 1000, 2000)))
    assert curve.exponent < 1.15 < curve.last_step
    assert curve.steep


def record_of(load: float) -> dict[str, object]:
    record = Record("ingest", "Landing files become rows")
    record.machine["load_before"] = [load, 0.0, 0.0]
    record.ratio("chmv ÷ insert_arrow", 0.891, "≥ 0.6")
    record.ratio("chmv ÷ something it lacks", None)
    record.table("rows | seconds", ("side", "s"), [("chmv", 1.5)])
    return asdict(record)


@pytest.mark.parametrize(("load", "busy"), [(0.4, False), (9.0, True)])
def test_the_page_tells_when_the_machine_was_busy(load: float, busy: bool) -> None:
    page = render({name: record_of(load) if name == "ingest" else None for name in QUICK}, [], quick=False)
    assert ("**busy**" in page) is busy


def test_the_page_shows_ratios_before_seconds_and_names_what_is_missing() -> None:
    page = render({name: record_of(0.1) if name == "ingest" else None for name in QUICK}, ["rebuild"], quick=True)
    missing = ", ".join(name for name in QUICK if name != "ingest")
    assert f"**no record: {missing}.**" in page
    assert "**failed: rebuild.**" in page
    assert "A quick run" in page
    assert page.index("| chmv ÷ insert_arrow | 0.89 | ≥ 0.6 |  |") < page.index("| chmv | 1.5 |")
    assert "| chmv ÷ something it lacks | cannot |" in page


@pytest.mark.parametrize(
    ("value", "wanted", "missed"),
    [(1.36, "≤ 1.25", True), (1.25, "≤ 1.25", False), (0.5, "≥ 0.6", True), (0.94, "≥ 0.6", False), (9.0, "", False), (None, "≤ 1", False)],
)  # fmt: skip
def test_the_page_marks_what_misses_its_bound(value: float | None, wanted: str, missed: bool) -> None:
    record = Record("ingest", "Landing files become rows")
    record.ratio("chmv ÷ bare", value, wanted, "a note")
    page = render({name: asdict(record) if name == "ingest" else None for name in QUICK}, [], quick=False)
    assert ("| **missed**, a note |" in page) is missed and "a note |" in page


def test_a_record_is_written_whatever_kind_of_mapping_its_turns_are(tmp_path: Path) -> None:
    record = Record("growth", "How costs grow", quick=True)
    turns: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    turns["plan"][10].append(0.5)
    record.raw = {"by objects": turns}
    record.ratio("exponent of plan", 0.123456, "≤ 1.15")
    record.table("growth", ("cost", "s"), [("plan", 0.5)])
    record.write(tmp_path / "new" / "growth.json")
    found = json.loads((tmp_path / "new" / "growth.json").read_text(encoding="utf-8"))
    assert found["raw"] == {"by objects": {"plan": {"10": [0.5]}}}
    assert found["ratios"] == [{"what": "exponent of plan", "value": 0.123, "wanted": "≤ 1.15", "note": ""}]
    assert found["tables"] == [{"title": "growth", "headings": ["cost", "s"], "rows": [["plan", "0.5"]]}]
    assert found["quick"] is True
    assert len(found["machine"]["load_after"]) == 3


def test_a_benchmark_waits_for_what_ran_before_but_not_for_ever() -> None:
    loads = iter([9.0, 3.0, 1.0])
    slept: list[float] = []
    rest(lambda: next(loads), slept.append)
    assert len(slept) == 2
    slept.clear()
    rest(lambda: 9.0, slept.append)
    assert sum(slept) == REST_SECONDS
