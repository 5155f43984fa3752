"""Where a declared landing is, and what a listing without reading shows."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import fsspec
import pytest

from chmv_assets.core.landing import LandingRefused
from resources import landing_root
from resources.landing import LandingMissing, is_missing, list_entries
from resources.landing_entry import LandingEntry
from resources.landing_root import resolve_root

DDL = Path("/etc/chmv/ddl")


def test_doctests() -> None:
    assert doctest.testmod(landing_root).failed == 0


@pytest.mark.parametrize(
    ("path", "root_variable", "wanted"),
    [
        ("landing/events", None, "/etc/chmv/ddl/landing/events"),
        ("landing/events", "", "/etc/chmv/ddl/landing/events"),
        ("landing/events", "/data", "/data/landing/events"),
        ("landing/events", "s3://bucket/prefix/", "s3://bucket/prefix/landing/events"),
        ("/srv/events", "/data", "/srv/events"),
        ("s3://bucket/events/", "/data", "s3://bucket/events/"),
    ],
)
def test_root_of_a_landing(path: str, root_variable: str | None, wanted: str) -> None:
    environ = {} if root_variable is None else {"CHMV_LANDING_ROOT": root_variable}
    assert resolve_root(path, DDL, environ) == wanted


def test_relative_folders_of_settings_are_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_root("in", Path("ddl"), {}) == str(tmp_path / "ddl" / "in")


def test_entries_tell_path_size_and_time_of_complete_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name in ("b/2.csv", "1.csv", ".hidden.csv", "3.csv.tmp", "4.parquet"):
        (tmp_path / name).write_bytes(b"x,y\n")
        os.utime(tmp_path / name, (5.0, 7.5))
    assert list_entries(str(tmp_path), "csv") == [
        LandingEntry(path="1.csv", bytes=4, modified=7.5),
        LandingEntry(path="b/2.csv", bytes=4, modified=7.5),
    ]


def test_missing_folder_is_a_refusal_of_its_own(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    assert is_missing(nowhere) and not is_missing(str(tmp_path)) and not is_missing("s3://bucket/x")
    with pytest.raises(LandingMissing, match="found no such folder") as caught:
        list_entries(nowhere, "csv")
    assert caught.value.root == nowhere


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_bytes(b"x")
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "x.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(LandingRefused, match="leads out of"):
        list_entries(str(tmp_path / "landing"), "csv")


def test_object_stores_are_listed_with_their_times() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/entries/a/1.parquet", b"one")
    (found,) = list_entries("memory://entries", "parquet")
    assert (found.path, found.bytes) == ("a/1.parquet", 3)
    assert found.modified is not None and found.modified > 1_000_000_000
