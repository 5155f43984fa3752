"""Input that wants to break us: DDL files, cursors, settings, landing paths. Each ends in a result or a clean error, in time."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chmv_assets.core.landing import LandingRefused, require_inside
from chmv_assets.pipeline import load_pipeline
from resources.landing import list_entries, list_files
from sensors import (
    alerts,
    drift_verdict,
    freshness_verdict,
    landing_verdict,
    late_data_cursor,
    merge_backlog_verdict,
    reaper_verdict,
    view_health_cursor,
)

LIMIT_SECONDS = 20.0
TABLES = "CREATE TABLE d.s (x UInt8) ENGINE = MergeTree ORDER BY x; CREATE TABLE d.t (x UInt8) ENGINE = MergeTree ORDER BY x; "
DDL: dict[str, bytes] = {
    "a megabyte of columns": f"CREATE TABLE d.t ({', '.join(f'c{i} UInt64 DEFAULT {i}' for i in range(40_000))}) ENGINE = MergeTree ORDER BY c0;".encode(),
    "a megabyte of SELECT": f"{TABLES}CREATE MATERIALIZED VIEW d.v TO d.t AS SELECT x FROM d.s WHERE x IN ({', '.join(map(str, range(160_000)))});".encode(),
    "ten thousand brackets": f"CREATE VIEW d.v AS SELECT {'(' * 10_000}1{')' * 10_000};".encode(),
    "ten thousand open brackets": f"CREATE VIEW d.v AS SELECT {'(' * 10_000}1;".encode(),
    "nested SELECTs": f"CREATE VIEW d.v AS {'SELECT * FROM (' * 2_000}SELECT 1{')' * 2_000};".encode(),
    "nested types": f"CREATE TABLE d.t (x {'Array(' * 5_000}UInt8{')' * 5_000}) ENGINE = MergeTree ORDER BY tuple();".encode(),
    "fifty thousand plus signs": f"CREATE VIEW d.v AS SELECT {'1 + ' * 50_000}1;".encode(),
    "binary": bytes(range(256)) * 2_000,
    "NUL behind a statement": b"CREATE TABLE d.t (x UInt8) ENGINE = Log;" + b"\0" * 100_000,
    "invalid UTF-8": b"CREATE TABLE d.`\xff\xfe` (x UInt8) ENGINE = Log;",
    "a million tiny statements": b"SELECT 1;\n" * 1_000_000,
    "an unclosed string": b"CREATE TABLE d.t (x String DEFAULT 'abc) ENGINE = Log;" + b"x" * 500_000,
    "unclosed comments": b"/*" * 100_000,
    "unclosed heredocs": "".join(f"$t{i}$ " for i in range(30_000)).encode(),
    "unclosed templates": b"{{" * 100_000,
    "unclosed blocks": b"{%" * 100_000,
    "backslashes": b"'" + b"\\" * 300_001,
    "dots": b"CREATE TABLE " + b"a." * 100_000 + b"a (x UInt8) ENGINE = Log;",
    "a name of a megabyte": b"CREATE TABLE d.`" + b"x" * 1_000_000 + b"` (x UInt8) ENGINE = Log;",
    "names from right to left": "CREATE TABLE d.`\u202etxet` (`\u2066x\u2069` UInt8, `\u200b` UInt8) ENGINE = Log;".encode(),
    "calls that may hold secrets": f"CREATE VIEW d.v AS SELECT {'s3(' * 20_000}".encode(),
    "addresses without an end": f"CREATE VIEW d.v AS SELECT '{'a://b:' * 50_000}';".encode(),
}  # fmt: skip
# In every run those that were quadratic once, in one process each; all of them with CHMV_THOROUGH=1.
QUICK = ("ten thousand brackets", "unclosed heredocs", "unclosed templates", "unclosed blocks", "binary", "invalid UTF-8", "NUL behind a statement", "names from right to left")  # fmt: skip
CHOSEN = list(DDL) if os.environ.get("CHMV_THOROUGH") else QUICK


@pytest.mark.parametrize("name", CHOSEN)
def test_hostile_ddl_ends_in_time_without_a_traceback(tmp_path: Path, name: str) -> None:
    (tmp_path / "a.sql").write_bytes(DDL[name])
    code = (
        "import sys, pathlib; from chmv_assets.pipeline import load_pipeline as load; "
        "folder = pathlib.Path(sys.argv[1]); print(len(load(folder, cache=folder / 'cache').catalog.errors))"
    )
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    seconds = time.monotonic() - started
    print(f"{name}: {seconds:.1f} s, {done.stdout.strip()} errors")
    assert (done.returncode, done.stderr) == (0, "")
    assert seconds < LIMIT_SECONDS


def test_a_folder_of_links_to_itself_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text("CREATE TABLE d.t (x UInt8) ENGINE = Log;")
    (tmp_path / "again").symlink_to(tmp_path)
    assert len(load_pipeline(tmp_path, cache=tmp_path / "cache").catalog.objects) == 1


# --- cursors --------------------------------------------------------------------------------------------------------------------

LOADERS: dict[str, Callable[[str | None], Any]] = {
    "late_data": late_data_cursor.load_cursor,
    "view_health": view_health_cursor.load_cursor,
    "landing": landing_verdict.load_cursor,
    "merge_backlog": merge_backlog_verdict.load_cursor,
    "freshness": freshness_verdict.load_cursor,
    "drift": drift_verdict.load_cursor,
    "reaper": lambda text: reaper_verdict.load_cursor(text, "host"),
    "alerts": alerts.load_seen,
    "checks": alerts.load_checks_cursor,
}
VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2**63, 2**200, 1e308, float("inf"), float("nan"), "", "x", "\x00", "\u202e", "`", "a.b", "a.b.c", [], {}, [[]], [1, 2], [[1, 2, 3, 4]],
    {"a": {}}, {"a.b": [1, 2, 3]}, "9" * 5_000,
)  # fmt: skip
TEXTS = (
    "", " ", "\0", "null", "[]", "{}", "1", '"x"', "{", "nan", '{"version":1}', '{"version":null}', '{"version":"1"}', '{"version":1e999}', "[" * 100_000,
    '{"version":1,"a":' + "[" * 100_000, "\ud800", "x" * 1_000_000,
)  # fmt: skip


def shaken(document: Any, draw: random.Random) -> Any:
    """A document with one of its values replaced, taken away or doubled."""
    if isinstance(document, dict) and document and draw.random() < 0.8:
        key = draw.choice(sorted(document))
        rest = {name: value for name, value in document.items() if name != key}
        return rest if draw.random() < 0.1 else {**document, key: shaken(document[key], draw)}
    if isinstance(document, list) and document and draw.random() < 0.8:
        at = draw.randrange(len(document))
        return [*document[:at], shaken(document[at], draw), *document[at + 1 :]]
    return draw.choice(VALUES)


@pytest.mark.parametrize("name", LOADERS)
def test_a_cursor_of_garbage_is_started_afresh_and_never_an_error(name: str) -> None:
    load = LOADERS[name]
    fresh = load(None)
    for text in TEXTS:
        load(text)
    draw = random.Random(name)
    good = json.loads(fresh.dump()) if hasattr(fresh, "dump") else {"version": 1}
    for _ in range(2_000):
        document = shaken(
            good if draw.random() < 0.5 else {**good, **{key: draw.choice(VALUES) for key in good if key != "version"}},
            draw,
        )
        found = load(json.dumps(document))
        if hasattr(found, "dump"):
            assert load(found.dump()) is not None


# --- landing --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    ["../x", "a/../../x", "/etc/passwd", "..", "a/b/../../../x", "..\\x", "C:\\x", "c:/x", "a\\..\\..\\x", "//host/x"],
)
def test_a_path_out_of_the_landing_folder_is_refused(path: str) -> None:
    with pytest.raises(LandingRefused, match="leads out of the landing folder"):
        require_inside(path)


@pytest.mark.parametrize("look", [list_entries, list_files])
def test_links_out_of_the_landing_folder_are_refused_and_folders_behind_links_not_entered(
    tmp_path: Path, look: Callable[[str, str], list[Any]]
) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (outside / "secret.jsonl").write_text('{"password": "x"}\n')
    (root / "good.jsonl").write_text("{}\n")
    (root / "inside.jsonl").symlink_to(root / "good.jsonl")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root)
    assert [one.path for one in look(str(root), "jsonl")] == ["good.jsonl", "inside.jsonl"]
    (root / "link.jsonl").symlink_to(outside / "secret.jsonl")
    with pytest.raises(LandingRefused, match="is a link that leads out"):
        look(str(root), "jsonl")
    (root / "link.jsonl").unlink()
    (root / "chain.jsonl").symlink_to(root / "folder" / "secret.jsonl")
    with pytest.raises(LandingRefused, match="is a link that leads out"):
        look(str(root), "jsonl")


def test_a_file_name_that_is_no_text_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "good.jsonl").write_text("{}\n")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jsonl")).write_text("{}\n")
    with pytest.raises(LandingRefused, match="not text"):
        list_entries(str(tmp_path), "jsonl")


def test_what_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    (tmp_path / "good.jsonl").write_text("{}\n")
    started = time.monotonic()
    assert [one.path for one in list_files(str(tmp_path), "jsonl")] == ["good.jsonl"]
    assert time.monotonic() - started < 5
