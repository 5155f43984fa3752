"""`chmv pull`: a live server's objects into a DDL folder, without ever losing an edit. Reads the server, writes only files.

What is written where is decided in `core.pull` (files), `core.pull_text` (statements), `core.pull_settings` (chmv.yaml) and
`core.pull_plan` (edits). Each file is replaced in one step, the manifest last: whoever dies in between is at worst asked about a file
that is already right.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.compare import Comparison, compare_objects
from chmv_assets.core.errors import PullRefused, UnknownDatabase, UnknownObject
from chmv_assets.core.model import VIEW_KINDS, Finding, Object
from chmv_assets.core.names import QName, parse_qname
from chmv_assets.core.own_tables import OWN_DATABASE
from chmv_assets.core.pull import MANIFEST_FILE, Pulled, PulledDatabase, PulledFile, lay_out
from chmv_assets.core.pull_plan import (
    WRITTEN,
    Action,
    Folder,
    Home,
    Step,
    digest_bytes,
    find_databases,
    next_manifest,
    plan_pull,
    render_diff,
)
from chmv_assets.core.pull_settings import SourceFacts, infer_sources, render_settings
from chmv_assets.core.pull_text import ServerDefaults, clean_statement, count_hidden, may_drop_columns, repeats_query
from chmv_assets.core.serving import SERVING_DATABASE, SNAPSHOT_DATABASE, mark_in
from chmv_assets.core.settings import DEFAULT_DATABASE, SETTINGS_FILE, Settings
from chmv_assets.live import build_live_catalog, compare_with_live
from chmv_assets.pipeline import Pipeline, parse_files, read_folder
from chmv_assets.settings_file import parse_settings_text
from chmv_assets.start import oldest_day
from resources.clickhouse import Server
from resources.inner_tables import fetch_states
from resources.introspect import SYSTEM_DATABASES, LiveObject
from resources.pull_reads import (
    LiveDatabase,
    fetch_databases,
    fetch_defaults,
    fetch_header,
    fetch_readable,
    fetch_requirements,
)

_NOT_OURS = (*SYSTEM_DATABASES, OWN_DATABASE, SNAPSHOT_DATABASE)
_LOCAL_ENGINES = ("Atomic", "Ordinary", "Replicated", "Shared", "Memory", "Lazy", "Overlay")
_USUAL_ENGINE = "Atomic"
_REPLACING = "_tmp_replace_"  # CREATE OR REPLACE in the middle of it
_UNREAD = ("not-text", "unterminated", "unreadable-statement", "settings-yaml")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What was not pulled, and why."""

    subject: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """A server as a pull sees it."""

    files: tuple[PulledFile, ...]
    objects: tuple[LiveObject, ...]
    catalog: Catalog
    databases: tuple[str, ...]  # that were looked at
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReport:
    """What a pull did, or would do."""

    folder: Path
    steps: tuple[Step, ...]
    left_out: tuple[LeftOut, ...] = ()
    hidden: tuple[str, ...] = ()  # statements in which the server hides a secret
    verdicts: tuple[tuple[QName, Comparison], ...] = ()  # of what is not equal to the server afterwards
    findings: tuple[Finding, ...] = ()  # errors of the folder as it is then
    notes: tuple[str, ...] = ()

    @property
    def conflicts(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action == "conflict")

    @property
    def written(self) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if step.action in WRITTEN)


def pull(
    server: Server,
    ddl_dir: Path,
    databases: Sequence[str] = (),
    *,
    force: bool = False,
    accept: Sequence[str] = (),
    dry_run: bool = False,
) -> PullReport:
    """Write what the server has into a folder. With `accept` only these objects, over whatever declares them now."""
    raw = dict(read_folder(ddl_dir)) if ddl_dir.is_dir() else {}
    before = _read_pipeline(ddl_dir, raw)
    live = read_live(server, databases)
    wanted = {_resolve(name, live, before.settings) for name in accept if name != SETTINGS_FILE}
    folder = _read_state(ddl_dir, raw, before, live, server)
    files = [file for file in live.files if not accept or file.name in wanted]
    steps = list(plan_pull(files, folder, lambda file: force or file.name in wanted))
    notes: list[str] = []
    if not accept:
        steps += _gone(folder, live)
    if not accept or SETTINGS_FILE in accept:
        declared = _parse_after(ddl_dir, folder, steps).catalog
        step, note = _plan_settings(server, folder, declared, steps, override=SETTINGS_FILE in accept)
        steps += [step]
        notes += note
    after = _parse_after(ddl_dir, folder, steps)
    verdicts = _verify(after, live, server, [file.name for file in files if file.name is not None], steps)
    _refuse_half_adopted(after, live, steps)
    if not dry_run:
        _write(ddl_dir, steps, next_manifest(steps, folder.manifest, folder.files), folder.manifest)
    return PullReport(
        folder=ddl_dir, steps=tuple(steps), left_out=live.left_out, notes=tuple(notes),
        hidden=tuple(file.subject for file in files if file.hidden), verdicts=verdicts, findings=after.catalog.errors,
    )  # fmt: skip


# --- the server ----------------------------------------------------------------------------------------------------


def read_live(server: Server, databases: Sequence[str] = ()) -> LiveState:
    """The objects of some databases, or of all that are not the server's or ours, as files."""
    there = {database.name: database for database in fetch_databases(server)}
    chosen, left_out = _choose(there, databases)
    catalog, objects = build_live_catalog(server, [database.name for database in chosen] or [""])
    kept = [live for live in objects if not live.is_hidden and not live.name.table.startswith(_REPLACING)]
    busy = {live.name: why for live in kept if (why := _why_not(live, catalog))}
    kept = [live for live in kept if live.name not in busy]
    pulled = _pulled(server, catalog, kept)
    filled = {one.name.database for one in pulled}
    # A database of ours holds our views only; one without objects says nothing.
    named = [database for database in chosen if database.name in filled]
    files = lay_out(pulled, [_database(database) for database in named])
    left_out += [LeftOut(str(name), why) for name, why in busy.items() if why != _SERVING]
    return LiveState(
        files=files, objects=objects, catalog=catalog, left_out=tuple(left_out),
        databases=tuple(database.name for database in chosen),
    )  # fmt: skip


def _choose(there: Mapping[str, LiveDatabase], wanted: Sequence[str]) -> tuple[list[LiveDatabase], list[LeftOut]]:
    for name in wanted:
        if name not in there or name in _NOT_OURS:
            known = sorted(set(there) - set(_NOT_OURS))
            raise UnknownDatabase(name, known)
    chosen = [one for name, one in there.items() if name not in _NOT_OURS and (not wanted or name in wanted)]
    foreign = [one for one in chosen if one.engine not in _LOCAL_ENGINES]
    why = "its tables live elsewhere"
    return [one for one in chosen if one not in foreign], [LeftOut(one.name, f"{one.engine}: {why}") for one in foreign]


def _database(live: LiveDatabase) -> PulledDatabase:
    return PulledDatabase(
        name=live.name, engine="" if live.engine == _USUAL_ENGINE else live.engine_full, comment=live.comment
    )


_SERVING = "a serving view of ours"


def _why_not(live: LiveObject, catalog: Catalog) -> str:
    if live.name.database == SERVING_DATABASE and live.engine == "View" and mark_in(live.sql):
        return _SERVING
    if not live.sql or live.name not in catalog.objects:
        return "the server shows no statement for it that chmv can read"
    references = {reference.name.database for reference in catalog.objects[live.name].references}
    if live.engine == "MaterializedView" and OWN_DATABASE in references:
        return "a rebuild has it in its hands just now; pull again when `chmv rebuilds` shows none running"
    return ""


def _pulled(server: Server, catalog: Catalog, objects: Sequence[LiveObject]) -> list[Pulled]:
    defaults = fetch_defaults(server)
    required = fetch_requirements(server, sorted({live.name.database for live in objects}))
    cleaned = [_clean(server, catalog.objects[live.name], live, defaults) for live in objects]
    readable = fetch_readable(server, cleaned)
    return [
        Pulled(
            name=live.name, kind=catalog.objects[live.name].kind, statement=text, hidden=count_hidden(text),
            needs=_needs(catalog.objects[live.name]) | required.get(live.name, frozenset()),
        )
        for live, text in zip(objects, readable, strict=True)
    ]  # fmt: skip


def _clean(server: Server, made: Object, live: LiveObject, defaults: ServerDefaults) -> str:
    drop = False
    if may_drop_columns(made):
        header = fetch_header(server, live.select, live.name.database)
        drop = header is not None and repeats_query(made, header)
    return clean_statement(live.sql, defaults, drop_columns=drop)


def _needs(made: Object) -> frozenset[QName]:
    """What a view's query names; tables over other tables have their columns and need nothing."""
    if made.kind not in (*VIEW_KINDS, "view"):
        return frozenset()
    return frozenset(reference.name for reference in made.references) | ({made.target} if made.target else set())


def _infer(server: Server, catalog: Catalog) -> tuple[SourceFacts, ...]:
    """Facts of the sources that a folder declares, also of those that another pull wrote."""
    sources = [name for name, role in catalog.roles().items() if role == "source" and catalog.scheme(name)]
    oldest: dict[QName, date] = {}
    for name, found in fetch_states(server, catalog, sources).items():
        if (day := oldest_day(state.partition for state in found)) is not None:
            oldest[name] = day
    return infer_sources(catalog, oldest)


# --- the folder ----------------------------------------------------------------------------------------------------


def _read_pipeline(ddl_dir: Path, files: Mapping[str, bytes]) -> Pipeline:
    """The folder as it is; what cannot be read might declare anything, so nothing is written beside it."""
    pipeline = _parse(ddl_dir, files)
    unread = [str(finding) for finding in pipeline.catalog.errors if finding.code in _UNREAD]
    if unread:
        raise PullRefused(
            f"folder {ddl_dir}: found files that cannot be read but wanted to know all that is declared. An object might be written a "
            "second time. Correct them (`chmv check`) and pull again.\n  " + "\n  ".join(unread)
        )
    return pipeline


def _parse(ddl_dir: Path, files: Mapping[str, bytes]) -> Pipeline:
    settings, findings = parse_settings_text(files.get(SETTINGS_FILE, b"").decode("utf-8", "replace"))
    return parse_files(ddl_dir, sorted(files.items()), settings, findings)


def _read_state(ddl_dir: Path, files: Mapping[str, bytes], before: Pipeline, live: LiveState, server: Server) -> Folder:
    declared = before.catalog.declared()
    manifest = _read_manifest(ddl_dir)
    there = {file.name for file in live.files}
    verdicts = compare_with_live(before.catalog, live.objects, server, [name for name in declared if name in there])
    homes = [home for path, raw in files.items() if path != SETTINGS_FILE for home in [find_databases(path, raw)]]
    return Folder(
        files=files,
        manifest=manifest,
        objects={
            name: Home(file=made.place.file, line=made.place.line, cluster=made.cluster)
            for name, made in declared.items()
        },
        databases={name: home for found in reversed(homes) for name, home in found.items()},
        differs={
            name: f"differs in {', '.join(difference.what for difference in verdict.differences)}"
            for name, verdict in verdicts.items()
            if verdict.state == "changed" and _compare_read(before, live, name).state != "equal"
        },
        unsure=frozenset(name for name, verdict in verdicts.items() if verdict.state == "cannot tell"),
        default_database=before.settings.default_database,
    )


def _compare_read(pipeline: Pipeline, live: LiveState, name: QName) -> Comparison:
    """What all statements of a folder together make of an object, ALTERs included, against the server's reading."""
    mine, theirs = pipeline.catalog.objects[name], live.catalog.objects[name]
    return compare_objects(mine, theirs, pipeline.settings.default_database)


def _read_manifest(ddl_dir: Path) -> dict[str, str]:
    file = ddl_dir / MANIFEST_FILE
    if not file.is_file():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))["files"]
        return {str(path): str(digest) for path, digest in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PullRefused(
            f"file {file}: found something that is no manifest ({error}) but wanted what pull wrote. Without it nobody knows which files "
            "were edited. Restore it from version control, or delete it: then every file that differs is asked about."
        ) from error


def _resolve(text: str, live: LiveState, settings: Settings) -> QName:
    known = [file.name for file in live.files if file.name is not None]
    try:
        name = parse_qname(text, settings.default_database)
    except ValueError:
        name = QName("", text)
    if name not in known:
        raise UnknownObject(text, (str(one) for one in known))
    return name


def _gone(folder: Folder, live: LiveState) -> list[Step]:
    there = {one.name for one in live.objects}
    return [
        Step(path=home.file, action="gone", subject=str(name), note="declared here, not on the server: file kept")
        for name, home in sorted(folder.objects.items())
        if name.database in live.databases and name not in there
    ]


def _plan_settings(
    server: Server, folder: Folder, declared: Catalog, steps: Sequence[Step], *, override: bool
) -> tuple[Step, list[str]]:
    """chmv.yaml is written while nobody has edited it; after that new sources are only named."""
    mine, base = folder.files.get(SETTINGS_FILE), folder.manifest.get(SETTINGS_FILE)
    untouched = mine is not None and digest_bytes(mine) == base
    if mine is None and base is not None and not override:
        return Step(path=SETTINGS_FILE, action="deleted", subject=SETTINGS_FILE, digest=base, note="deleted here"), []
    settings = parse_settings_text(mine.decode("utf-8", "replace"))[0] if mine is not None else Settings()
    facts = _infer(server, declared)
    if mine is not None and not untouched and not override:
        named = {name for section in (settings.sources, settings.targets, settings.views) for name, _ in section}
        new = [str(one.name) for one in facts if one.said and one.name not in named]
        note = [f"{SETTINGS_FILE} is yours; it does not mention {', '.join(new)}"] if new else []
        return Step(path=SETTINGS_FILE, action="declared", subject=SETTINGS_FILE, digest=base or ""), note
    if untouched:
        facts = tuple(_with_start(one, settings) for one in facts)
    theirs = render_settings(facts, server.timezone, _default_database(folder, declared, settings, steps)).encode()
    action: Action = (
        "new" if mine is None else "unchanged" if mine == theirs else "updated" if untouched else "accepted"
    )
    diff = render_diff(SETTINGS_FILE, mine, theirs) if mine is not None else ""
    after = None if action == "unchanged" else theirs
    digest = digest_bytes(theirs)
    return Step(
        path=SETTINGS_FILE, action=action, subject=SETTINGS_FILE, after=after, digest=digest, diff=diff
    ), []  # fmt: skip


def _default_database(folder: Folder, declared: Catalog, settings: Settings, steps: Iterable[Step]) -> str:
    """The only database, where all statements are ours: in others a new default would change what a bare name means."""
    if settings.default_database != DEFAULT_DATABASE:
        return settings.default_database
    ours = {*folder.manifest, *(step.path for step in steps if step.action in WRITTEN), SETTINGS_FILE}
    owned = {name.database for name in declared.declared()}
    return owned.pop() if len(owned) == 1 and set(folder.files) <= ours else ""


def _with_start(facts: SourceFacts, settings: Settings) -> SourceFacts:
    """Partitions age out, and a start that moves breaks backfills: one that is written stays."""
    known = any(name == facts.name for name, _ in settings.sources)
    start = settings.policy(facts.name).start
    return replace(facts, start=start) if known and start is not None else facts


def _parse_after(ddl_dir: Path, folder: Folder, steps: Iterable[Step]) -> Pipeline:
    files = dict(folder.files)
    for step in steps:
        files.pop(step.removes, None)
        if step.after is not None:
            files[step.path] = step.after
    return _parse(ddl_dir, files)


def _verify(
    after: Pipeline, live: LiveState, server: Server, names: Iterable[QName], steps: Iterable[Step]
) -> tuple[tuple[QName, Comparison], ...]:
    """What the folder will say, against the server, by the comparison that checks use; conflicts are known already."""
    in_the_way = {step.subject for step in steps if step.action in ("conflict", "edited", "deleted")}
    wanted = [name for name in names if name in after.catalog.objects and str(name) not in in_the_way]
    found = compare_with_live(after.catalog, live.objects, server, wanted)
    return tuple((name, verdict) for name, verdict in sorted(found.items()) if verdict.state != "equal")


def _refuse_half_adopted(after: Pipeline, live: LiveState, steps: Iterable[Step]) -> None:
    """A later ALTER in the folder may change again what was just adopted."""
    accepted = {step.subject for step in steps if step.action == "accepted"}
    for name in [one.name for one in live.objects if str(one.name) in accepted]:
        found = _compare_read(after, live, name)
        if found.state != "equal":
            told = "; ".join(str(difference) for difference in found.differences)
            raise PullRefused(
                f"object {name}: with the server's statement in its place the folder still says something else ({told}) but wanted the "
                "same. Later statements of the folder change it again. Nothing was written; adopt it by hand."
            )


def _write(ddl_dir: Path, steps: Iterable[Step], manifest: Mapping[str, str], before: Mapping[str, str]) -> None:
    contents: dict[str, bytes] = {}
    removed: set[str] = set()
    for step in steps:
        if step.after is not None:
            contents[step.path] = step.after  # the last one of a path has all changes
        if step.removes:
            removed.add(step.removes)
    for path, content in contents.items():
        _write_file(ddl_dir / path, content)
    for path in removed - set(contents):
        (ddl_dir / path).unlink(missing_ok=True)
    if manifest != before:
        text = json.dumps({"version": 1, "files": manifest}, indent=1, sort_keys=True)
        _write_file(ddl_dir / MANIFEST_FILE, f"{text}\n".encode())


def _write_file(path: Path, content: bytes) -> None:
    """Replace a file in one step; it keeps its rights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
