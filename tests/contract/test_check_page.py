"""docs/check.md keeps up with the code: every finding of `chmv check` has its row with its severity, and no row is left over."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Findings of Spark's variables are told by sessions, not by `chmv check`.
FILES = [path for path in (ROOT / "chmv_assets").rglob("*.py") if path.name != "spark_conf.py"]
_SETTING = re.compile(r"settings-[a-z-]+")  # a defect of chmv.yaml, whichever reader raises it
_ROW = re.compile(r"^\| `([a-z-]+)` \| (error|warning|note) \|", re.MULTILINE)


def findings_of(path: Path) -> Iterator[tuple[str, str]]:
    """Code and severity of what a module may find."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        texts = [one.value if isinstance(one, ast.Constant) else None for one in node.args]
        said = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
        if called == "Finding" and "code" in said:
            yield str(said["code"]), str(said["severity"])
        elif called == "_finding":
            yield str(texts[0]), str(texts[1])
        elif called == "note" and len(texts) == 3:
            yield str(texts[1]), "warning" if said.get("warn") else "note"
        else:
            yield from ((text, "error") for text in texts if isinstance(text, str) and _SETTING.fullmatch(text))


def test_the_page_has_every_finding_and_no_other() -> None:
    found = {one for path in FILES for one in findings_of(path)}
    rows = _ROW.findall((ROOT / "docs" / "check.md").read_text(encoding="utf-8"))
    assert {"union-view", "settings-no-effect", "unapplied-alter"} <= {code for code, _ in found}
    assert sorted(rows) == sorted(found)
