"""Landing folders: which files lie there, and what each one is by content. Local paths and object-store URLs alike.

Only complete files count: names that begin with a dot or an underscore, or end in `.tmp`, `.crc` or `.inprogress`, are what
other tools are still writing. A link that leads out of the folder is refused. Nothing here reads rows. `list_files` reads every
byte for its checksum; `list_entries` looks at names, sizes and times only, which is what a sensor can afford.
"""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet

from chmv_assets.core.landing import LandingFile, LandingRefused, require_inside
from resources.landing_entry import LandingEntry

_UNFINISHED = (".tmp", ".crc", ".inprogress")
_ENDINGS = {
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".json.gz"),
    "csv": (".csv", ".csv.gz"),
}
_CHUNK_BYTES = 4 * 1024 * 1024
_SAMPLED_LINES = 1_000  # of a JSON file; a key that first appears later is ignored
_IDENTITY_KEYS = ("ETag", "etag", "checksum", "md5Hash", "content_md5")
_MODIFIED_KEYS = ("LastModified", "last_modified", "mtime", "updated", "created")


class LandingMissing(LandingRefused):
    """A landing folder that does not exist (yet)."""

    def __init__(self, root: str) -> None:
        self.root = root
        super().__init__(
            f"landing {root}: found no such folder but wanted one with files. Nothing was loaded. "
            "Create it, or correct `landing.path` in chmv.yaml."
        )


def is_missing(root: str) -> bool:
    """Whether a local landing folder does not exist; an object store has no folders, so a URL is never missing."""
    return "://" not in root and not Path(root).is_dir()


def list_entries(root: str, file_format: str) -> list[LandingEntry]:
    """All complete files of a format below a folder or URL prefix, in order of their paths; no file is opened."""
    endings = _ENDINGS[file_format]
    found = _remote_entries(root) if "://" in root else _local_entries(Path(root))
    return sorted((entry for entry in found if _counts(entry.path, endings)), key=lambda entry: entry.path)


def _local_entries(root: Path) -> Iterator[LandingEntry]:
    for relative, path in _local_paths(root):
        try:
            seen = path.stat()
        except FileNotFoundError:  # taken away while we look
            continue
        yield LandingEntry(path=relative, bytes=seen.st_size, modified=seen.st_mtime)


def _remote_entries(root: str) -> Iterator[LandingEntry]:
    _, listing = _remote_listing(root)
    for relative, _, info in listing:
        yield LandingEntry(path=relative, bytes=int(info.get("size") or 0), modified=_modified(info))


def _modified(info: Mapping[str, Any]) -> float | None:
    """When the store says that an object was written; stores tell it as a moment, a number or a text."""
    value = next((info[key] for key in _MODIFIED_KEYS if info.get(key)), None)
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            return None
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).timestamp()
    return float(value) if isinstance(value, (int, float)) else None


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
    for relative, path in _local_paths(root):
        yield LandingFile(path=relative, bytes=path.stat().st_size, checksum=_checksum(path))


def _local_paths(root: Path) -> Iterator[tuple[str, Path]]:
    """Complete files of any format, each with its path relative to the folder."""
    if is_missing(str(root)):
        raise LandingMissing(str(root))
    real_root = root.resolve()
    known_endings = tuple(ending for group in _ENDINGS.values() for ending in group)
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder) / name
            if path.is_symlink() and not path.resolve().is_relative_to(real_root):
                raise LandingRefused(
                    f"file {path}: is a link that leads out of {root}. It could read anything. Copy the file instead."
                )
            relative = require_inside(path.relative_to(root).as_posix())
            if not _counts(relative, known_endings):
                continue
            _require_text(relative, root)
            if path.is_file():  # a pipe or a device would be waited for
                yield relative, path


def _require_text(relative: str, root: Path) -> None:
    try:
        relative.encode()
    except UnicodeEncodeError:
        shown = relative.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        raise LandingRefused(
            f"file {shown} in {root}: its name is not text in UTF-8 but wanted one that the journal can keep. Nothing was loaded. Rename it."
        ) from None


def _checksum(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _remote_files(root: str) -> Iterator[LandingFile]:
    system, listing = _remote_listing(root)
    for relative, path, info in listing:
        yield LandingFile(
            path=relative, bytes=int(info.get("size") or 0), checksum=_remote_identity(system, path, info)
        )


def _remote_listing(root: str) -> tuple[Any, list[tuple[str, str, dict[str, Any]]]]:
    """The file system of a URL, and all objects below it: relative path, path there, and what the store tells."""
    try:
        system, prefix = fsspec.core.url_to_fs(root)
        system.invalidate_cache()  # file systems are kept per process, with what they listed last
        listing: dict[str, dict[str, Any]] = system.find(prefix, detail=True)
    except (ImportError, ValueError) as error:
        raise LandingRefused(
            f"landing {root}: cannot be opened ({error}). Nothing was loaded. Install the fsspec package for this kind of URL."
        ) from error
    return system, [
        (require_inside(path.removeprefix(prefix).lstrip("/")), path, info) for path, info in listing.items()
    ]


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
