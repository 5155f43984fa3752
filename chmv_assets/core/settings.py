"""The settings of a pipeline: what the DDL cannot say.

`parse_settings` turns a plain document (the content of chmv.yaml) into frozen records and reports every defect at once;
`check_settings` holds the names against the catalog. The invariant: settings without defects round-trip through
`to_document`. Reading the file lives in `chmv_assets.settings_file`, the readers of single values in `settings_values`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import date
from functools import partial
from typing import Any, Literal

from chmv_assets.core import settings_values as values
from chmv_assets.core.cadence import Unit
from chmv_assets.core.errors import CatalogDefects
from chmv_assets.core.model import Finding, Place
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.settings_values import (
    BadValueError,
    ExtraColumns,
    LandingFormat,
    Protocol,
    Recovery,
    TunerMode,
    nearest,
)
from chmv_assets.core.thresholds import THRESHOLDS, Limits, limits_of

SETTINGS_FILE = "chmv.yaml"
DEFAULT_DATABASE = "default"
KeyPath = tuple[str, ...]
Section = Literal["sources", "targets", "views"]
SECTIONS: tuple[Section, ...] = ("sources", "targets", "views")


@dataclass(frozen=True, slots=True, kw_only=True)
class Landing:
    """Where files of a source arrive."""

    path: str
    format: LandingFormat = "parquet"
    tolerated_bad_rate: float = 0.0  # share of rows that may go to quarantine before a batch fails
    extra_columns: ExtraColumns = "refuse"  # columns that stand in the files but not in the table


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What holds for every object that does not say otherwise."""

    lateness_tolerance_seconds: int = 900
    sla_seconds: int = 300
    owners: tuple[str, ...] = ()
    protocol: Protocol = "auto"
    recovery: Recovery = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSettings:
    """One section as written; None means: not said here."""

    event_time: str | None = None
    arrival: str | None = None
    lateness_tolerance_seconds: int | None = None
    start: date | None = None
    cadence: Unit | None = None
    sla_seconds: int | None = None
    landing: Landing | None = None
    owners: tuple[str, ...] | None = None
    group: str | None = None
    protocol: Protocol | None = None
    recovery: Recovery | None = None
    allow_empty: bool | None = None
    description: str | None = None
    tags: tuple[tuple[str, str], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPolicy:
    """What holds for one object: its sections, and the defaults where they are silent."""

    lateness_tolerance_seconds: int
    sla_seconds: int
    owners: tuple[str, ...]
    protocol: Protocol
    recovery: Recovery = "auto"  # whether sensors repair it by themselves
    start: date | None = None
    event_time: str | None = None
    arrival: str | None = None
    cadence: Unit | None = None
    landing: Landing | None = None
    group: str | None = None
    allow_empty: bool = False  # a rebuild may delete a window for which the views give nothing any more
    description: str | None = None
    tags: tuple[tuple[str, str], ...] = ()


Objects = tuple[tuple[QName, ObjectSettings], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that chmv.yaml says, with the defaults of what it does not say."""

    version: int = 1
    default_database: str = DEFAULT_DATABASE
    timezone: str = "UTC"
    start: date | None = None
    databases: tuple[str, ...] = ()
    tuner: TunerMode = "off"
    defaults: Defaults = Defaults()
    thresholds: tuple[tuple[str, float], ...] = ()  # those that are said; `limits` has all
    sources: Objects = ()
    targets: Objects = ()
    views: Objects = ()
    lines: tuple[tuple[KeyPath, int], ...] = field(default=(), compare=False, repr=False)

    @property
    def limits(self) -> Limits:
        """The thresholds in effect."""
        return limits_of(dict(self.thresholds))

    def section(self, section: Section) -> Objects:
        """The objects of one section."""
        return {"sources": self.sources, "targets": self.targets, "views": self.views}[section]

    def policy(self, name: QName) -> ObjectPolicy:
        """What holds for an object, whichever sections name it."""
        said: dict[str, Any] = {
            "lateness_tolerance_seconds": self.defaults.lateness_tolerance_seconds,
            "sla_seconds": self.defaults.sla_seconds,
            "owners": self.defaults.owners,
            "protocol": self.defaults.protocol,
            "recovery": self.defaults.recovery,
            "start": self.start,
        }
        for section in SECTIONS:
            objects = self.section(section)
            at = bisect_left(objects, name, key=lambda item: item[0])  # sections are kept sorted
            if at < len(objects) and objects[at][0] == name:
                said |= _said(objects[at][1])
        return ObjectPolicy(**said)

    def to_document(self) -> dict[str, Any]:
        """Give plain JSON: the settings in the form of the file, and the lines they stood on."""
        document: dict[str, Any] = {
            "version": self.version,
            "default_database": self.default_database,
            "timezone": self.timezone,
            "databases": list(self.databases),
            "tuner": self.tuner,
            "defaults": _plain(self.defaults),
            "thresholds": dict(self.thresholds),
        }
        if self.start is not None:
            document["start"] = self.start.isoformat()
        for section in SECTIONS:
            document[section] = {str(name): _plain(settings) for name, settings in self.section(section)}
        return {"settings": document, "lines": [[list(path), line] for path, line in self.lines]}

    @staticmethod
    def from_document(document: Mapping[str, Any]) -> Settings:
        """Read what `to_document` gave; refuse what it never gives."""
        lines = {tuple(path): int(line) for path, line in document["lines"]}
        settings, findings = parse_settings(document["settings"], lines)
        if findings:
            raise CatalogDefects(findings)
        return settings


_YAML_NAMES = {"lateness_tolerance_seconds": "lateness_tolerance", "sla_seconds": "sla"}
_FIELD_NAMES = {yaml_name: name for name, yaml_name in _YAML_NAMES.items()}


def _said(record: Defaults | ObjectSettings | Landing) -> dict[str, Any]:
    found = {item.name: getattr(record, item.name) for item in fields(record)}
    return {name: value for name, value in found.items() if value is not None}


def _plain(record: Defaults | ObjectSettings | Landing) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in _said(record).items():
        if isinstance(value, Landing):
            value = _plain(value)
        elif isinstance(value, date):
            value = value.isoformat()
        elif isinstance(value, tuple):
            value = dict(value) if name == "tags" else list(value)
        document[_YAML_NAMES.get(name, name)] = value
    return document


Reader = Callable[[object], Any]
_TOP: dict[str, Reader] = {
    "version": values.read_version,
    "default_database": values.read_text,
    "timezone": values.read_timezone,
    "start": values.read_date,
    "databases": values.read_texts,
    "tuner": values.read_tuner,
}
_DEFAULTS: dict[str, Reader] = {
    "lateness_tolerance": values.read_duration,
    "sla": values.read_positive_duration,
    "owners": values.read_owners,
    "protocol": values.read_protocol,
    "recovery": values.read_recovery,
}
_THRESHOLDS: dict[str, Reader] = {one.name: partial(values.read_threshold, one) for one in THRESHOLDS}
_LANDING: dict[str, Reader] = {
    "path": values.read_text,
    "format": values.read_landing_format,
    "tolerated_bad_rate": values.read_rate,
    "extra_columns": values.read_extra_columns,
}
_COMMON: dict[str, Reader] = _DEFAULTS | {
    "event_time": values.read_text,
    "group": values.read_group,
    "description": values.read_text,
    "tags": values.read_tags,
}
_TABLE: dict[str, Reader] = _COMMON | {
    "arrival": values.read_text,
    "start": values.read_date,
    "cadence": values.read_cadence,
}
_OBJECT: dict[Section, dict[str, Reader]] = {
    "sources": _TABLE,
    "targets": _TABLE | {"allow_empty": values.read_flag},
    "views": _COMMON,
}
_NESTED = ("defaults", "thresholds", *SECTIONS)


class _Reading:
    """Collects the defects of one document while it is read."""

    def __init__(self, lines: Mapping[KeyPath, int], database: str) -> None:
        self.lines = lines
        self.database = database
        self.findings: list[Finding] = []

    def in_order(self) -> tuple[Finding, ...]:
        return tuple(sorted(self.findings, key=lambda finding: finding.place.line if finding.place else 0))

    def subject(self, path: KeyPath) -> str:
        if len(path) > 1 and path[0] in SECTIONS:
            with suppress(ValueError):
                return str(parse_qname(path[1], self.database))
        return ""

    def defect(self, code: str, path: KeyPath, found: str, wanted: str, *rest: str) -> None:
        sentences = "".join(f" {text.rstrip('.')}." if text[-1:] != "?" else f" {text}" for text in rest if text)
        message = f"setting {'.'.join(path) or SETTINGS_FILE}: found {found} but wanted {wanted}.{sentences}"
        place = Place(SETTINGS_FILE, line_of(path, self.lines))
        self.findings.append(
            Finding(code=code, severity="error", message=message, place=place, subject=self.subject(path))
        )

    def mapping(self, raw: object, path: KeyPath) -> dict[str, object]:
        if raw is None:
            return {}
        if isinstance(raw, Mapping):
            return {str(key): value for key, value in raw.items()}
        self.defect("settings-type", path, _shown(raw), "a mapping of keys to values")
        return {}

    def read(self, raw: dict[str, object], path: KeyPath, readers: Mapping[str, Reader]) -> dict[str, Any]:
        """Read every known key; the unknown ones and the bad values become defects."""
        found: dict[str, Any] = {}
        for key, value in raw.items():
            if key not in readers:
                todo = nearest(key, readers) or "Remove it"
                self.defect("settings-unknown-key", (*path, key), "an unknown key", "a known one", todo)
                continue
            try:
                found[_FIELD_NAMES.get(key, key)] = readers[key](value)
            except BadValueError as error:
                self.defect(error.code, (*path, key), _shown(value), error.wanted, error.why, error.todo)
        return found


def line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """The line of a setting, or of what encloses it."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)


def _shown(value: object) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "…"


def parse_settings(raw: object, lines: Mapping[KeyPath, int]) -> tuple[Settings, tuple[Finding, ...]]:
    """Read the content of chmv.yaml; what has defects keeps its default."""
    reading = _Reading(lines, DEFAULT_DATABASE)
    top = reading.mapping(raw, ())
    known: dict[str, Reader] = {**_TOP, **{name: lambda value: value for name in _NESTED}}
    found = reading.read(top, (), known)
    defaults = reading.read(reading.mapping(found.pop("defaults", None), ("defaults",)), ("defaults",), _DEFAULTS)
    thresholds = reading.read(
        reading.mapping(found.pop("thresholds", None), ("thresholds",)), ("thresholds",), _THRESHOLDS
    )
    reading.database = found.get("default_database", DEFAULT_DATABASE)
    sections = {section: _objects(reading, section, found.pop(section, None)) for section in SECTIONS}
    settings = Settings(
        **found,
        defaults=Defaults(**defaults),
        thresholds=tuple(sorted(thresholds.items())),
        sources=sections["sources"],
        targets=sections["targets"],
        views=sections["views"],
        lines=tuple(sorted(lines.items())),
    )
    _refuse_contradictions(reading, settings)
    return settings, reading.in_order()


def _objects(reading: _Reading, section: Section, raw: object) -> Objects:
    objects: dict[QName, ObjectSettings] = {}
    for key, content in reading.mapping(raw, (section,)).items():
        path = (section, key)
        try:
            name = parse_qname(key, reading.database)
        except ValueError:
            reading.defect("settings-name", path, repr(key), "a name like database.table")
            continue
        if name in objects:
            reading.defect("settings-duplicate-key", path, f"a second section for {name}", "one", "Merge the two")
            continue
        objects[name] = _object(reading, path, section, reading.mapping(content, path))
    return tuple(sorted(objects.items(), key=lambda item: item[0]))


def _object(reading: _Reading, path: KeyPath, section: Section, raw: dict[str, object]) -> ObjectSettings:
    landing = None
    if section == "sources" and "landing" in raw:
        landing = _landing(reading, (*path, "landing"), raw.pop("landing"))
    return ObjectSettings(**reading.read(raw, path, _OBJECT[section]), landing=landing)


def _landing(reading: _Reading, path: KeyPath, raw: object) -> Landing | None:
    content = reading.mapping(raw, path)
    found = reading.read(content, path, _LANDING)
    if "path" not in content and (raw is None or isinstance(raw, Mapping)):
        reading.defect("settings-type", path, "no path", "the folder of the files", "Add path")
    return Landing(**found) if "path" in found else None


def _refuse_contradictions(reading: _Reading, settings: Settings) -> None:
    """A table may stand under sources and under targets, but both must agree on what they both say."""
    sources = dict(settings.sources)
    written = written_names(settings, "targets")
    for name, target in settings.targets:
        other = _said(sources.get(name, ObjectSettings()))
        for key, value in _said(target).items():
            if key in other and other[key] != value:
                path = ("targets", written.get(name, str(name)), _YAML_NAMES.get(key, key))
                wanted = f"{_shown(other[key])} as under sources"
                reading.defect("settings-conflict", path, _shown(value), wanted, "It is one table", "Say it once")


def written_names(settings: Settings, section: Section) -> dict[QName, str]:
    """The keys under which the objects of a section stand in the file."""
    found: dict[QName, str] = {}
    for path, _ in settings.lines:
        if len(path) == 2 and path[0] == section:
            with suppress(ValueError):  # a bad name is a defect of its own
                found.setdefault(parse_qname(path[1], settings.default_database), path[1])
    return found


def check_settings(settings: Settings, catalog_names: Mapping[str, Collection[str]]) -> tuple[Finding, ...]:
    """Hold the settings against the catalog: `database.table` → its columns (empty where they are not known)."""
    reading = _Reading(dict(settings.lines), settings.default_database)
    for section in SECTIONS:
        written = written_names(settings, section)
        for name, content in settings.section(section):
            path: KeyPath = (section, written.get(name, str(name)))
            if str(name) not in catalog_names:
                todo = nearest(str(name), catalog_names) or "Correct the name or remove the section"
                reading.defect("settings-unknown-object", path, "a name that no DDL declares", "a declared one", todo)
                continue
            _check_columns(reading, path, content, catalog_names[str(name)])
    databases = {parse_qname(name, settings.default_database).database for name in catalog_names}
    for database in settings.databases:
        if database not in databases:
            todo = nearest(database, databases)
            reading.defect("settings-unknown-database", ("databases",), repr(database), "one that the DDL uses", todo)
    return reading.in_order()


def _check_columns(reading: _Reading, path: KeyPath, content: ObjectSettings, columns: Collection[str]) -> None:
    for key, column in (("event_time", content.event_time), ("arrival", content.arrival)):
        if column is not None and columns and column not in columns:
            todo = nearest(column, columns)
            reading.defect("settings-unknown-column", (*path, key), repr(column), f"a column of {path[1]}", todo)
