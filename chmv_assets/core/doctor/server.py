"""Rules about the server itself: its version, its clock, its logs, and what could not be looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chmv_assets.core.capabilities import OLDEST_VERSION, needed_settings
from chmv_assets.core.doctor.facts import Facts
from chmv_assets.core.doctor.finding import SERVER, Ailment, Rule


def _version(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    found = tuple(int(part) for part in re.findall(r"\d+", facts.version)[:2])
    if found < OLDEST_VERSION:
        oldest = ".".join(map(str, OLDEST_VERSION))
        yield rule.ailment(
            SERVER,
            f"version {facts.version or 'unknown'}",
            f"{oldest} or newer",
            f"-- upgrade the server to {oldest} or newer",
        )


def _capabilities(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if not facts.session:
        return
    missing = sorted(set(needed_settings()) - set(facts.session))
    if missing:
        yield rule.ailment(
            SERVER, f"version {facts.version} lacks {', '.join(missing)}", "a server that knows them",
            "-- upgrade the server to 26.2 or newer",
        )  # fmt: skip


def _clock(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    skew, most = facts.clock_skew_seconds, facts.limits.clock_skew
    if abs(skew) > most:
        way = "ahead of" if skew > 0 else "behind"
        yield rule.ailment(
            SERVER,
            f"the server's clock is {abs(skew):.1f} s {way} ours",
            f"at most {most:g} s",
            "chronyc makestep  # on the host that is wrong",
        )


def _logs(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for setting in ("log_queries", "log_query_views"):
        if facts.value(setting) == "0":
            yield rule.ailment(
                SERVER, f"{setting} = 0 for user {facts.user}", "1",
                f"<!-- users.d, in the profile of {facts.user} --> <{setting}>1</{setting}>",
            )  # fmt: skip
    for log in facts.missing_logs:
        yield rule.ailment(
            SERVER, f"there is no system.{log}, or {facts.user} may not see it", "the log is kept",
            f"<!-- config.d --> <{log}><database>system</database><table>{log}</table></{log}>",
        )  # fmt: skip


def _unread(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    for what, why in facts.unread:
        yield rule.ailment(
            SERVER,
            f"{what} could not be read: {why}",
            "it can be read",
            f"GRANT SELECT ON system.* TO {facts.user or 'chmv'}",
        )


def _not_deployed(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    declared = [
        n for n, made in facts.catalog.objects.items() if made.kind in ("table", "null", "buffer", "distributed")
    ]
    gone = [name for name in declared if name not in facts.tables]
    if gone:
        shown = ", ".join(map(str, gone[:5])) + (", …" if len(gone) > 5 else "")
        yield rule.ailment(
            SERVER,
            f"{len(gone)} of {len(declared)} declared tables are not on the server ({shown})",
            "all",
            "chmv plan",
        )


RULES = (
    Rule(
        id="server-version", severity="error", measured="version()", wanted="24.8 or newer", judge=_version,
        why="Older servers lack settings and system columns that every part of chmv relies on.",
    ),
    Rule(
        id="server-lacks-settings", severity="warn", measured="system.settings", wanted="all settings of an exact commit", judge=_capabilities,
        why="A retried batch is a no-op only under these settings; ingestion is refused without them.",
    ),
    Rule(
        id="clock-skew", severity="warn", measured="now64() against our clock, less half the round trip", wanted="at most `clock_skew` seconds",
        why="Lateness, watermarks, fences and gates compare moments of both clocks.", judge=_clock,
    ),
    Rule(
        id="logs-missing", severity="warn", measured="log_queries, log_query_views; query_log, query_views_log, part_log", wanted="on, and there",
        why="Inserts in doubt, views that throw and parts that were deduplicated are seen in these logs alone.", judge=_logs,
    ),
    Rule(
        id="not-deployed", severity="advice", measured="declared tables against system.tables", wanted="all there", judge=_not_deployed,
        why="What is not there cannot be looked at.",
    ),
    Rule(
        id="could-not-look", severity="warn", measured="a read of a system table that failed", wanted="it can be read", judge=_unread,
        why="Rules that need it were passed over: what they would have found is not known.",
    ),
)  # fmt: skip
