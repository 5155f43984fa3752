"""Readers of single values in the settings file: one function per kind of value, each gives a typed value or refuses.

A reader raises `BadValueError` with what was wanted, why, and what to do; it knows nothing of where the value stood.
The structure of the file, and the collecting of all defects, lives in `settings`.
"""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterable
from datetime import date, datetime
from typing import Literal, TypeVar

from chmv_assets.core.cadence import UNITS, Unit, cadence_name
from chmv_assets.core.thresholds import Threshold

Protocol = Literal["auto", "closed", "gated", "fenced", "owned", "whole"]
FeedChoice = Literal["auto", "pushdown", "replay"]
Recovery = Literal["auto", "off"]
TunerMode = Literal["off", "dry_run", "on"]
LandingFormat = Literal["parquet", "jsonl", "csv"]
ExtraColumns = Literal["refuse", "ignore"]
PROTOCOLS: tuple[Protocol, ...] = ("auto", "closed", "gated", "fenced", "owned", "whole")
RECOVERIES: tuple[Recovery, ...] = ("auto", "off")
TUNER_MODES: tuple[TunerMode, ...] = ("off", "dry_run", "on")
FEEDS: tuple[FeedChoice, ...] = ("auto", "pushdown", "replay")
LANDING_FORMATS: tuple[LandingFormat, ...] = ("parquet", "jsonl", "csv")
EXTRA_COLUMNS: tuple[ExtraColumns, ...] = ("refuse", "ignore")

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_Choice = TypeVar("_Choice", bound=str)
_DURATION = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)m)?\s*(?:(\d+)s)?\Z")
# What Dagster itself accepts (dagster/_core/definitions/utils.py and _utils/tags.py of 1.13).
_OWNER = re.compile(r"team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7}\Z")
_GROUP = re.compile(r"[A-Za-z0-9_]+(/[A-Za-z0-9_]+)*\Z")
_TAG_KEY = re.compile(r"([A-Za-z0-9_.-]{1,63}/)?[A-Za-z0-9_.-]{1,63}\Z")
_TAG_VALUE = re.compile(r"[A-Za-z0-9_.-]{0,63}\Z")


class BadValueError(ValueError):
    """A value that its setting cannot take."""

    def __init__(self, code: str, wanted: str, why: str = "", todo: str = "") -> None:
        self.code = code
        self.wanted = wanted
        self.why = why
        self.todo = todo
        super().__init__(wanted)


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known names as a sentence, or list all when there are few and none is close.

    >>> nearest("slo", ["sla", "start"])
    'Did you mean sla?'
    """
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        return f"Did you mean {', '.join(close)}?"
    return f"Known are {', '.join(names)}." if 0 < len(names) <= 20 else ""


def read_text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise BadValueError("settings-type", "a text", todo="Put it in quotes if it looks like a number or a date.")
    return value.strip()


def read_texts(value: object) -> tuple[str, ...]:
    """A list of texts."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) and item.strip() for item in value):
        raise BadValueError("settings-type", "a list of texts", todo="Write it as [a, b].")
    return tuple(item.strip() for item in value)


def read_duration(value: object) -> int:
    """A duration in seconds.

    >>> read_duration("15m"), read_duration("1h30m"), read_duration(90)
    (900, 5400, 90)
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _DURATION.match(value.strip()) if isinstance(value, str) and value.strip() else None
    if match is None:
        wanted = "a duration like 90s, 15m, 2h or 1d, or a number of seconds"
        raise BadValueError("settings-duration", wanted, todo="Write a number with its unit.")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * 86400 + hours * 3600 + minutes * 60 + seconds


def read_positive_duration(value: object) -> int:
    """A duration of at least one second."""
    seconds = read_duration(value)
    if seconds <= 0:
        raise BadValueError("settings-duration", "a duration of at least 1s", todo="Leave the key out for the default.")
    return seconds


def read_date(value: object) -> date:
    """A calendar day."""
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    try:
        # Python 3.11 reads more forms than 3.10: only the one form that both know.
        return date.fromisoformat(value if isinstance(value, str) and _DAY.match(value) else "")
    except ValueError:
        raise BadValueError("settings-date", "a day like 2026-07-01", todo="Give year, month and day.") from None


def read_timezone(value: object) -> str:
    """A zone of the IANA database."""
    name = read_text(value)
    try:
        zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        why = "Windows begin and end at midnights of the zone"
        todo = nearest(name, zoneinfo.available_timezones()) or "Leave it out for UTC."
        raise BadValueError("settings-timezone", "a zone like Europe/Berlin", why, todo) from None
    return name


def read_owners(value: object) -> tuple[str, ...]:
    """Owners in the two forms that Dagster takes."""
    owners = read_texts(value)
    if bad := [owner for owner in owners if not _OWNER.match(owner)]:
        todo = f"Write team:{re.sub(r'[^A-Za-z0-9_-]+', '-', bad[0]).strip('-') or 'name'} or an address."
        raise BadValueError("settings-owner", "team:<name> or an e-mail address", "Dagster takes no other form", todo)
    return owners


def read_protocol(value: object) -> Protocol:
    """A rebuild protocol."""
    return _choice(value, PROTOCOLS, "settings-protocol", "rebuild protocol")


def read_recovery(value: object) -> Recovery:
    """Whether sensors repair an object; YAML reads a bare `off` as false.

    >>> read_recovery(False), read_recovery("auto")
    ('off', 'auto')
    """
    return _choice("off" if value is False else value, RECOVERIES, "settings-recovery", "way of recovery")


def read_tuner(value: object) -> TunerMode:
    """Whether the tuner acts; YAML reads a bare `off` as false and a bare `on` as true.

    >>> read_tuner(False), read_tuner(True), read_tuner("dry_run")
    ('off', 'on', 'dry_run')
    """
    plain = {False: "off", True: "on"}[value] if isinstance(value, bool) else value
    return _choice(plain, TUNER_MODES, "settings-tuner", "mode of the tuner")


def read_threshold(threshold: Threshold, value: object) -> float:
    """A number within the bounds of a threshold; seconds may be written as a duration."""
    number = read_duration(value) if threshold.unit == "seconds" and isinstance(value, str) else value
    is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
    if is_number and threshold.lowest <= number <= threshold.highest:  # type: ignore[operator]
        return float(number)  # type: ignore[arg-type]
    upper = "" if threshold.highest == float("inf") else f" and at most {threshold.highest:g}"
    raise BadValueError(
        "settings-threshold", f"a number of {threshold.unit}, at least {threshold.lowest:g}{upper}", threshold.reason.rstrip("."),
        f"The default is {threshold.default:g}",
    )  # fmt: skip


def read_landing_format(value: object) -> LandingFormat:
    """A format of landing files."""
    return _choice(value, LANDING_FORMATS, "settings-format", "file format")


def read_extra_columns(value: object) -> ExtraColumns:
    """What to do with columns that stand in the files only."""
    return _choice(value, EXTRA_COLUMNS, "settings-extra-columns", "way with extra columns")


def read_cadence(value: object) -> Unit:
    """A cadence by its name or its unit.

    >>> read_cadence("daily"), read_cadence("hour")
    ('day', 'hour')
    """
    names = {cadence_name(unit): unit for unit in UNITS}
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and text in names:
        return names[text]
    if text in UNITS:
        return _choice(text, UNITS, "settings-cadence", "cadence")
    raise BadValueError(
        "settings-cadence", f"one of {', '.join(names)}", todo=nearest(str(value), names) if value else ""
    )


def read_flag(value: object) -> bool:
    """Yes or no."""
    if isinstance(value, bool):
        return value
    raise BadValueError("settings-flag", "true or false", todo="Write it without quotes.")


def read_rate(value: object) -> float:
    """A share between 0 and 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise BadValueError("settings-rate", "a share between 0 and 1, such as 0.01", todo="Write 1% as 0.01.")


def read_group(value: object) -> str:
    """A Dagster asset group."""
    group = read_text(value)
    if not _GROUP.match(group):
        todo = f"Write {re.sub(r'[^A-Za-z0-9_/]+', '_', group)}."
        raise BadValueError("settings-group", "letters, digits and _", "Dagster takes no other names", todo)
    return group


def read_tags(value: object) -> tuple[tuple[str, str], ...]:
    """Dagster tags, sorted by key."""
    if not isinstance(value, dict):
        raise BadValueError("settings-type", "a mapping of texts", todo="Write it as {tier: gold}.")
    tags = {str(key): item if isinstance(item, str) else str(item) for key, item in value.items()}
    if any(not _TAG_KEY.match(key) or not _TAG_VALUE.match(item) for key, item in tags.items()):
        why = "Dagster takes letters, digits, _, . and - only, at most 63 of them"
        raise BadValueError("settings-tag", "plain tags", why, "Put longer texts into the description.")
    return tuple(sorted(tags.items()))


def read_version(value: object) -> int:
    """The version of the file's format: 1."""
    if value == 1 and not isinstance(value, bool):
        return 1
    raise BadValueError("settings-version", "1", "This chmv knows no other version of the file", "Write version: 1.")


def _choice(value: object, known: tuple[_Choice, ...], code: str, kind: str) -> _Choice:
    for item in known:
        if value == item:
            return item
    raise BadValueError(code, f"a {kind} out of {', '.join(known)}", todo=nearest(str(value), known))
