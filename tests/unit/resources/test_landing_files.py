"""Listing landing folders, local and remote."""

from __future__ import annotations

import hashlib
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from chmv_assets.core.landing import LandingRefused
from resources.landing import found_columns, list_files


def write(root: Path, path: str, content: bytes = b"x") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def test_only_complete_files_of_the_format_count(tmp_path: Path) -> None:
    for name in (
        "b/2.parquet",
        "a.parquet",
        "c.csv",
        "_SUCCESS",
        ".hidden.parquet",
        "_temporary/d.parquet",
        "e.parquet.tmp",
    ):
        write(tmp_path, name)
    assert [file.path for file in list_files(str(tmp_path), "parquet")] == ["a.parquet", "b/2.parquet"]
    assert [file.path for file in list_files(str(tmp_path), "csv")] == ["c.csv"]


def test_identity_is_the_content(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", b"same")
    write(tmp_path, "b.jsonl", b"same")
    one, two = list_files(str(tmp_path), "jsonl")
    assert one.checksum == two.checksum == hashlib.sha256(b"same").hexdigest()
    assert one.bytes == 4


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "secret.csv")
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "x.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(LandingRefused, match="leads out of"):
        list_files(str(tmp_path / "landing"), "csv")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(LandingRefused, match="found no such folder"):
        list_files(str(tmp_path / "nowhere"), "csv")


def test_object_stores_are_listed_by_url() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe(
        {"/bucket/landing/a.parquet": b"1", "/bucket/landing/x/b.parquet": b"1", "/bucket/landing/_tmp/c.parquet": b"2"}
    )
    try:
        one, two = list_files("memory://bucket/landing", "parquet")
        assert (one.path, two.path) == ("a.parquet", "x/b.parquet")
        assert one.checksum == two.checksum
    finally:
        memory.rm("/bucket", recursive=True)


def test_unknown_store_says_what_to_install() -> None:
    with pytest.raises(LandingRefused, match="cannot be opened"):
        list_files("nostore://bucket/x", "parquet")


def test_columns_come_from_footer_header_or_keys(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "f.parquet")
    write(tmp_path, "f.csv", b"\xef\xbb\xbfb,a\n1,2\n")
    write(tmp_path, "f.jsonl", b'{"a": 1}\nnot json\n[1]\n{"c": 2}\n')
    for name, wanted in (("parquet", ("a", "b")), ("csv", ("b", "a")), ("jsonl", ("a", "c"))):
        (file,) = list_files(str(tmp_path), name)
        assert found_columns(str(tmp_path), file, name) == wanted


def test_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    write(tmp_path, "broken.parquet", b"PAR1 nothing")
    (file,) = list_files(str(tmp_path), "parquet")
    with pytest.raises(LandingRefused, match=r"file broken\.parquet: cannot be read as parquet"):
        found_columns(str(tmp_path), file, "parquet")
