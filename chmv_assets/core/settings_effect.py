"""Settings that stand where nothing reads them: told by `chmv check`, because a setting that silently does nothing is worse than none.

What is read where: the SLA and the protocol are those of a target, the event time and the tolerance those of tables. What a key may hold is in
`settings_values`, whether it is known at all in `settings`.
"""

from __future__ import annotations

from collections.abc import Iterator

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.model import VIEW_KINDS, Finding, Object, Place
from chmv_assets.core.settings import SECTIONS, SETTINGS_FILE, ObjectSettings, Settings, line_of, written_names

_OF_TARGETS = (("sla", "sla_seconds"), ("protocol", "protocol"))
_OF_TABLES = (("event_time", "event_time"), ("lateness_tolerance", "lateness_tolerance_seconds"))


def find_idle_settings(settings: Settings, catalog: Catalog) -> Iterator[Finding]:
    """One warning per key of an object that has no effect there."""
    lines = dict(settings.lines)
    for section in SECTIONS:
        written = written_names(settings, section)
        for name, content in settings.section(section):
            made = catalog.objects.get(name)
            if made is None:
                continue  # a name that no DDL declares is a defect of its own
            for key, where in _idle_keys(catalog, made, content):
                path = (section, written.get(name, str(name)), key)
                message = (
                    f"setting {'.'.join(path)}: found a value but nothing reads it here. A setting that does nothing misleads. "
                    f"Say it of {where}, or remove it."
                )
                place = Place(SETTINGS_FILE, line_of(path, lines))
                yield Finding(
                    code="settings-no-effect", severity="warning", message=message, place=place, subject=str(name)
                )


def _idle_keys(catalog: Catalog, made: Object, content: ObjectSettings) -> Iterator[tuple[str, str]]:
    is_view = made.kind in (*VIEW_KINDS, "view")
    if not catalog.views_into(made.name):
        where = f"its target {made.target}" if made.kind in VIEW_KINDS and made.target else "the targets"
        yield from ((key, where) for key, attribute in _OF_TARGETS if getattr(content, attribute) is not None)
    if is_view:
        yield from ((key, "the source") for key, attribute in _OF_TABLES if getattr(content, attribute) is not None)
