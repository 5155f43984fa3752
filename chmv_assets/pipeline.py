"""A DDL folder → its pipeline (catalog and settings), parsed once per change.

Every run process loads the location anew, so the result is kept in a cache under a hash of all file contents and of the core
itself: a hit costs reading the files and one JSON document. A broken or foreign cache file counts as a miss. A folder with secrets in its
statements is never kept: it is parsed each time, and `chmv check` says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from chmv_assets import core
from chmv_assets.collector import collector_paused
from chmv_assets.core import catalog_codec
from chmv_assets.core.calendar import Calendar
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog, decode_source
from chmv_assets.core.model import Finding, Place
from chmv_assets.core.names import QName
from chmv_assets.core.secrets import find_secrets
from chmv_assets.core.settings import SETTINGS_FILE, Settings, check_settings
from chmv_assets.core.settings_effect import find_idle_settings
from chmv_assets.settings_file import read_settings
from resources.toolchain import cache_dir

DEMO_DDL = Path(__file__).parent / "ddl"
_KEPT_CACHE_FILES = 16


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """What is declared: the catalog, its settings, and where they came from."""

    catalog: Catalog
    settings: Settings
    ddl_dir: Path
    fingerprint: str
    from_cache: bool = False

    def require_sound(self) -> Pipeline:
        """Give the pipeline back, or raise all defects at once."""
        self.catalog.require_sound()
        return self

    def calendar(self, name: QName) -> Calendar | None:
        """The partitions of an object in Dagster: the cadence of its settings, else what its PARTITION BY says; none without either."""
        scheme = self.catalog.scheme(name)
        unit = self.settings.policy(name).cadence or (scheme.unit if scheme is not None else None)
        if unit is None:
            return None
        return Calendar(unit, self.settings.timezone, scheme.week_mode if scheme is not None else None)

    def rebuild_calendar(self, target: QName) -> Calendar | None:
        """The periods that a target is rebuilt by; none if its PARTITION BY knows no time: it is rebuilt as a whole."""
        return self.calendar(target) if target in self.catalog.schemes else None


def load_pipeline(ddl_dir: Path, *, cache: Path | None = None) -> Pipeline:
    """Load a DDL folder, from the cache if nothing changed; defects are in `catalog.findings`, nothing is raised."""
    raw = list(read_folder(ddl_dir))
    fingerprint = _fingerprint(raw)
    kept = (cache or cache_dir()) / "catalog" / f"{fingerprint}.json"
    hit = _read_cached(kept, ddl_dir, fingerprint)
    if hit is not None:
        return hit
    pipeline = replace(parse_folder(ddl_dir, raw), fingerprint=fingerprint)
    if raw and not any(find_secrets(made.sql) for made in pipeline.catalog.objects.values()):
        _write_cached(kept, pipeline)
    return pipeline


def parse_folder(ddl_dir: Path, raw: list[tuple[str, bytes]]) -> Pipeline:
    """Parse without looking at the cache."""
    settings, findings = read_settings(ddl_dir)
    return parse_files(ddl_dir, raw, settings, findings)


def parse_files(
    ddl_dir: Path,
    raw: Iterable[tuple[str, bytes]],
    settings: Settings,
    findings: Sequence[Finding] = (),
) -> Pipeline:
    """Parse files that need not be on disk; `findings` are the defects of the settings."""
    files: list[SourceFile] = []
    defects = list(findings)
    for path, content in raw:
        if path == SETTINGS_FILE:
            continue
        decoded = decode_source(path, content)
        if isinstance(decoded, Finding):
            defects.append(decoded)
        else:
            files.append(decoded)
    if not files and not defects:
        found = "no .sql file" if ddl_dir.is_dir() else "no such folder"
        message = f"folder {ddl_dir}: found {found} but wanted at least one .sql file. Point CHMV_DDL_DIR or --ddl at your DDL."
        defects.append(Finding(code="no-ddl", severity="error", message=message, place=Place(str(ddl_dir), 1)))
    catalog = build_catalog(files, default_database=settings.default_database, findings=defects)
    names = {str(name): {column.name for column in made.columns} for name, made in catalog.objects.items()}
    told = (*check_settings(settings, names), *find_idle_settings(settings, catalog))
    catalog = replace(catalog, findings=(*catalog.findings, *told))
    return Pipeline(catalog=catalog, settings=settings, ddl_dir=ddl_dir, fingerprint="")


def read_sources(ddl_dir: Path) -> tuple[tuple[str, str], ...]:
    """The DDL files of a folder, as text: path → statements."""
    found: list[tuple[str, str]] = []
    for path, content in read_folder(ddl_dir):
        decoded = decode_source(path, content) if path != SETTINGS_FILE else None
        if isinstance(decoded, SourceFile):
            found.append((decoded.path, decoded.text))
    return tuple(found)


def read_folder(ddl_dir: Path) -> Iterator[tuple[str, bytes]]:
    """Every file of a DDL folder that counts: its path below the folder and its bytes."""
    for folder, folders, names in os.walk(ddl_dir):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.endswith(".sql") or (name == SETTINGS_FILE and Path(folder) == ddl_dir):
                path = Path(folder) / name
                yield path.relative_to(ddl_dir).as_posix(), path.read_bytes()


@cache
def _core_digest() -> str:
    """A change of the parser makes old cache entries worthless."""
    digest = hashlib.sha256()
    for path in sorted(Path(next(iter(core.__path__))).glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _fingerprint(raw: list[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256(_core_digest().encode())
    for path, content in raw:
        digest.update(f"{path}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def _read_cached(path: Path, ddl_dir: Path, fingerprint: str) -> Pipeline | None:
    try:
        with collector_paused():
            document = json.loads(path.read_bytes())
            catalog = catalog_codec.decode(document["catalog"])
            settings = Settings.from_document(document["settings"])
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return None
    return Pipeline(catalog=catalog, settings=settings, ddl_dir=ddl_dir, fingerprint=fingerprint, from_cache=True)


def _write_cached(path: Path, pipeline: Pipeline) -> None:
    """Keep the pipeline; a folder that cannot be written only costs time, so it is not an error."""
    document = {"catalog": catalog_codec.encode(pipeline.catalog), "settings": pipeline.settings.to_document()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            json.dump(document, file, separators=(",", ":"))
        Path(file.name).replace(path)
        newest_first = sorted(path.parent.glob("*.json"), key=lambda kept: kept.stat().st_mtime, reverse=True)
        for old in newest_first[_KEPT_CACHE_FILES:]:
            old.unlink(missing_ok=True)
    except OSError:
        return
