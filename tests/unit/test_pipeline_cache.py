"""The cache of parsed folders: a hit is the same pipeline, any change is a miss, a broken cache costs only time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from chmv_assets import pipeline as module
from chmv_assets.core.errors import CatalogDefects
from chmv_assets.pipeline import DEMO_DDL, Pipeline, load_pipeline
from resources.toolchain import cache_dir

DDL = "CREATE TABLE d.s (ts DateTime) ENGINE = MergeTree PARTITION BY toDate(ts) ORDER BY ts;"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "ddl"
    (made / "sub").mkdir(parents=True)
    (made / "a.sql").write_text(DDL)
    (made / "sub" / "b.sql").write_text("CREATE VIEW d.v AS SELECT ts FROM d.s;")
    (made / "chmv.yaml").write_text("version: 1\ndefault_database: d\n")
    return made


@pytest.fixture
def load(folder: Path, tmp_path: Path) -> Callable[[], Pipeline]:
    return lambda: load_pipeline(folder, cache=tmp_path / "cache")


def kept(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_second_load_is_a_hit_and_equal(load: Callable[[], Pipeline]) -> None:
    first, second = load(), load()
    assert (first.from_cache, second.from_cache) == (False, True)
    assert replace(second, from_cache=False) == first


def test_demo_hit_is_equal(tmp_path: Path) -> None:
    first, second = (load_pipeline(DEMO_DDL, cache=tmp_path) for _ in range(2))
    assert second.from_cache
    assert (second.catalog, second.settings, second.fingerprint) == (first.catalog, first.settings, first.fingerprint)


def test_hit_never_calls_the_parser(load: Callable[[], Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    first = load()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(module, "parse_folder", refuse)
    assert load().catalog == first.catalog


def test_location_with_a_warm_cache_never_calls_the_parser(tmp_path: Path) -> None:
    """In a fresh interpreter, as every run process does it; no SQL parser is even imported."""
    load_pipeline(DEMO_DDL, cache=tmp_path)
    code = (
        "import sys, chmv_assets.core.catalog as catalog\n"
        "def refuse(*a, **k): raise AssertionError('parsed again')\n"
        "import chmv_assets.pipeline as pipeline\n"
        "pipeline.parse_folder = refuse\n"
        "import chmv_assets.definitions as location\n"
        "assert len(list(location.defs.resolve_all_asset_keys())) > 30\n"
    )
    environment = {"CHMV_CACHE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DAGSTER_HOME": ""}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda f: (f / "a.sql").write_text(DDL.replace("ts", "tz")),
    "a comment": lambda f: (f / "a.sql").write_text(DDL + "-- x"),
    "nested file": lambda f: (f / "sub" / "b.sql").write_text("CREATE VIEW d.w AS SELECT ts FROM d.s;"),
    "new file": lambda f: (f / "c.sql").write_text("CREATE TABLE d.c (x UInt8) ENGINE = Log;"),
    "removed file": lambda f: (f / "sub" / "b.sql").unlink(),
    "renamed file": lambda f: (f / "a.sql").rename(f / "z.sql"),
    "moved text": lambda f: ((f / "a.sql").write_text(""), (f / "sub" / "b.sql").write_text(DDL)),
    "settings": lambda f: (f / "chmv.yaml").write_text("version: 1\ndefault_database: e\n"),
    "removed settings": lambda f: (f / "chmv.yaml").unlink(),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_change_is_a_miss(load: Callable[[], Pipeline], folder: Path, change: str) -> None:
    before = load()
    CHANGES[change](folder)
    after = load()
    assert not after.from_cache
    assert after.fingerprint != before.fingerprint


def test_change_of_the_core_is_a_miss(load: Callable[[], Pipeline], monkeypatch: pytest.MonkeyPatch) -> None:
    load()
    monkeypatch.setattr(module, "_core_digest", lambda: "other")
    assert not load().from_cache


def test_other_files_do_not_matter(load: Callable[[], Pipeline], folder: Path) -> None:
    load()
    (folder / "README.md").write_text("x")
    (folder / ".git").mkdir()
    (folder / ".git" / "x.sql").write_text("FOO")
    assert load().from_cache


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b"\xff\xfe", b'{"catalog": {}}', b'{"catalog": {"version": 1}, "settings": {}}', b'{"catalog": null, "settings": 5}'])  # fmt: skip
def test_broken_cache_file_is_a_miss(load: Callable[[], Pipeline], tmp_path: Path, content: bytes) -> None:
    first = load()
    (file,) = kept(tmp_path)
    file.write_bytes(content)
    second = load()
    assert not second.from_cache
    assert second.catalog == first.catalog
    assert load().from_cache, "and it is repaired"


def test_truncated_cache_file_is_a_miss(load: Callable[[], Pipeline], tmp_path: Path) -> None:
    load()
    (file,) = kept(tmp_path)
    raw = file.read_bytes()
    for part in range(1, 10):
        file.write_bytes(raw[: len(raw) * part // 10])
        assert not load().from_cache


def test_cache_folder_that_cannot_be_written_is_no_error(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for _ in range(2):
        assert not load_pipeline(folder, cache=tmp_path / "file").from_cache


def test_defects_come_back_from_the_cache(load: Callable[[], Pipeline], folder: Path) -> None:
    (folder / "bad.sql").write_text("FOO BAR;")
    first, second = load(), load()
    assert second.from_cache
    assert second.catalog.findings == first.catalog.findings
    with pytest.raises(CatalogDefects, match=r"bad.sql:1: error \[unreadable-statement\]"):
        second.require_sound()


def test_old_entries_are_removed(load: Callable[[], Pipeline], folder: Path, tmp_path: Path) -> None:
    for number in range(20):
        (folder / "n.sql").write_text(f"CREATE TABLE d.n{number} (x UInt8) ENGINE = Log;")
        load()
    assert len(kept(tmp_path)) == 16
    assert load().from_cache, "the newest is kept"


def test_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CatalogDefects, match="found no such folder but wanted"):
        load_pipeline(tmp_path / "nowhere", cache=tmp_path).require_sound()
    (tmp_path / "empty").mkdir()
    assert [f.code for f in load_pipeline(tmp_path / "empty", cache=tmp_path).catalog.errors] == ["no-ddl"]


def test_cache_folder_follows_the_environment(tmp_path: Path) -> None:
    assert cache_dir({"CHMV_CACHE_DIR": "/x"}) == Path("/x")
    assert cache_dir({"XDG_CACHE_HOME": "/y"}) == Path("/y/chmv")
    assert cache_dir({}) == Path.home() / ".cache" / "chmv"
