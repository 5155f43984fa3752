"""Whether a repair that is asked for was done before, by whoever: then its run changes nothing and says so.

Two daemons may start two runs for one piece of evidence, and people run one again. The journal tells what is repaired, the server
whether it still is. Where either is in doubt the answer is no: every repair may be done twice.
"""

from __future__ import annotations

from chmv_assets.core.model import VIEW_KINDS
from chmv_assets.core.recovery import Ask, Outcome, RecoveryRecord, decode_recovery, moment, read_recoveries
from chmv_assets.recovery.mending import look_at
from chmv_assets.recovery.outage_book import read_open
from chmv_assets.recovery.site import RecoverySite
from resources.introspect import fetch_existing

_KINDS = ("view", "late")  # the others look at the present state anyhow


def read_repaired(site: RecoverySite, ask: Ask) -> RecoveryRecord | None:
    """The repair of the same evidence that ended well, if what it repaired is still right."""
    if ask.kind not in _KINDS:
        return None
    statement = read_recoveries(site.journal.cluster, subject=str(ask.subject), statuses=("repaired",))
    rows = site.server.fetch(statement)
    for record in map(decode_recovery, rows):
        if record.recovery == ask.key and record.ended_ms:
            return record if _is_right(site, ask) else None
    return None


def _is_right(site: RecoverySite, ask: Ask) -> bool:
    made = site.pipeline.catalog.objects.get(ask.subject)
    if made is None or read_open(site, ask.subject) is not None:
        return False
    if made.kind in VIEW_KINDS:
        return not look_at(site, made).damage
    return made.kind != "table" or made.name in fetch_existing(site.server, [made.name])


def told_repaired(site: RecoverySite, record: RecoveryRecord) -> Outcome:
    """What the run's page says."""
    when = moment(record.ended_ms).isoformat(timespec="seconds")
    site.did(f"{record.subject}: {record.damage} was repaired at {when} by {record.owner}; nothing was changed")
    return Outcome(tier=record.tier, steps=tuple(site.steps))
