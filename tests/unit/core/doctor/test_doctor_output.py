"""What `chmv doctor` prints and by which code it exits, by facts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_doctor_rules import HEALTHY

from chmv_assets.cli.doctor import exit_code, print_findings
from chmv_assets.core.doctor import RULES, examine


def test_nothing_to_mend_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    print_findings(HEALTHY, (), ())
    assert f"{len(RULES)} rules looked at 5 objects: nothing to mend." in capsys.readouterr().out


def test_findings_are_counted_and_their_cures_stand_on_lines_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    facts = replace(HEALTHY, version="23.1", clock_skew_seconds=9)
    print_findings(facts, examine(facts), ())
    out = capsys.readouterr().out
    assert "1 errors, 1 warnings." in out and "\nchronyc makestep" in out


@pytest.mark.parametrize(
    ("changes", "usual", "strict"),
    [({}, 0, 0), ({"rejected_inserts": 1}, 0, 0), ({"clock_skew_seconds": 9}, 0, 1), ({"version": "23.1"}, 1, 1)],
)
def test_exit_codes(changes: dict[str, object], usual: int, strict: int) -> None:
    found = examine(replace(HEALTHY, **changes))  # type: ignore[arg-type]
    assert (exit_code(found, strict=False), exit_code(found, strict=True)) == (usual, strict)
