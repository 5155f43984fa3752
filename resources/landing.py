"""Landing folders: which files lie there, and what each one is by content. Local paths and object-store URLs alike.

Only complete files count: names that begin with a dot or an underscore, or end in `.tmp`, `.crc` or `.inprogress`, are what
other tools are still writing. A link that leads out of the folder is refused. Nothing here reads rows.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet

from chmv_assets.core.landing import LandingFile, LandingRefused, require_inside

_UNFINISHED = (".tmp", ".crc", ".inprogress")
_ENDINGS = {
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".json.gz"),
    "csv": (".csv", ".csv.gz"),
}
_CHUNK_BYTES = 4 * 1024 * 1024
_SAMPLED_LINES = 1_000  # of a JSON file; a key that first appears later is ignored
_IDENTITY_KEYS = ("ETag", "etag", "checksum", "md5Hash", "content_md5")


def list_files(root: str, file_format: str) -> list[LandingFile]:
    """All complete files of a format below a folder or URL prefix, in order of their paths."""
    endings = _ENDINGS[file_format]
    found = _remote_files(root) if "://" in root else _local_files(Path(root))
    return sorted((file for file in found if _counts(file.path, endings)), key=lambda file: file.path)


def _counts(path: str, endings: tuple[str, ...]) -> bool:
    parts = path.split("/")
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and not path.endswith(_UNFINISHED) and path.lower().endswith(endings)


def _local_files(root: Path) -> Iterator[LandingFile]:
    if not root.is_dir():
        raise LandingRefused(
            f"landing {root}: found no such folder but wanted one with files. Nothing was loaded. "
            "Create it, or correct `landing.path` in chmv.yaml."
        )
    real_root = root.resolve()
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if not path.resolve().is_relative_to(real_root):
                raise LandingRefused(
                    f"file {path}: is a link that leads out of {root}. It could read anything. Copy the file instead."
                )
            relative = require_inside(path.relative_to(root).as_posix())
            if _counts(relative, tuple(ending for group in _ENDINGS.values() for ending in group)):
                yield LandingFile(path=relative, bytes=path.stat().st_size, checksum=_checksum(path))


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _remote_files(root: str) -> Iterator[LandingFile]:
    try:
        system, prefix = fsspec.core.url_to_fs(root)
        listing: dict[str, dict[str, Any]] = system.find(prefix, detail=True)
    except (ImportError, ValueError) as error:
        raise LandingRefused(
            f"landing {root}: cannot be opened ({error}). Nothing was loaded. Install the fsspec package for this kind of URL."
        ) from error
    for path, info in listing.items():
        relative = require_inside(path.removeprefix(prefix).lstrip("/"))
        yield LandingFile(
            path=relative, bytes=int(info.get("size") or 0), checksum=_remote_identity(system, path, info)
        )


def _remote_identity(system: Any, path: str, info: dict[str, Any]) -> str:
    """The store's own checksum if it has one, else the content's."""
    for key in _IDENTITY_KEYS:
        if info.get(key):
            return f"{key}:{info[key]}:{info.get('size')}".replace('"', "")
    digest = hashlib.sha256()
    with system.open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def found_columns(root: str, file: LandingFile, file_format: str) -> tuple[str, ...]:
    """The columns of one file: a Parquet footer, a CSV header, the keys of the first JSON lines.

    A file that cannot be read at all is refused by name; its neighbours are not touched.
    """
    url = f"{root.rstrip('/')}/{file.path}"
    try:
        if file_format == "parquet":
            with fsspec.open(url, "rb") as handle:
                return tuple(pyarrow.parquet.ParquetFile(handle).schema_arrow.names)
        with fsspec.open(url, "rt", encoding="utf-8-sig", errors="replace", compression="infer") as text:
            if file_format == "csv":
                return tuple(next(csv.reader(text), ()))
            return _json_keys(text)
    except (OSError, pyarrow.ArrowInvalid, EOFError) as error:
        raise LandingRefused(
            f"file {file.path}: cannot be read as {file_format} ({error}). Nothing of it was loaded. "
            "Send it again, or move it out of the landing folder."
        ) from error


def _json_keys(lines: Iterable[str]) -> tuple[str, ...]:
    keys: dict[str, None] = {}
    for line in itertools.islice(lines, _SAMPLED_LINES):
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            keys |= dict.fromkeys(record)
    return tuple(keys)


def count_records(root: str, file: LandingFile, file_format: str) -> int:
    """How many records a file holds, counted without Spark: the account that an ingest has to match."""
    url = f"{root.rstrip('/')}/{file.path}"
    if file_format == "parquet":
        with fsspec.open(url, "rb") as handle:
            return int(pyarrow.parquet.ParquetFile(handle).metadata.num_rows)
    with fsspec.open(url, "rb", compression="infer") as lines:
        filled = sum(1 for line in lines if line.strip())
    return max(filled - 1, 0) if file_format == "csv" else filled
