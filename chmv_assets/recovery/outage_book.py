"""Opening and closing outages in the journal, for the repairs of views and targets."""

from __future__ import annotations

from dataclasses import replace

from chmv_assets.core.names import QName
from chmv_assets.core.outages import OPEN, Outage, OutageStatus, decode_outage, read_outages, write_outage
from chmv_assets.core.recovery import Ask
from chmv_assets.recovery.site import RecoverySite


def read_open(site: RecoverySite, name: QName) -> Outage | None:
    """The outage of a view that is not over; the oldest, if crashes have left several."""
    found = _read_all_open(site, name)
    return found[-1] if found else None


def _read_all_open(site: RecoverySite, name: QName) -> list[Outage]:
    statement = read_outages(site.journal.cluster, view=str(name), statuses=OPEN)
    return [decode_outage(row) for row in site.server.fetch(statement)]


def read_isolated(site: RecoverySite) -> list[Outage]:
    """Views that are off."""
    statement = read_outages(site.journal.cluster, statuses=("isolated",))
    return [decode_outage(row) for row in site.server.fetch(statement)]


def open_outage(site: RecoverySite, ask: Ask, status: OutageStatus = "open") -> Outage:
    """Note that a view is not right since a moment; one that is noted already goes on."""
    known = read_open(site, ask.subject)
    opened = ask.since_ms if ask.since_ms is not None else ask.detected_ms or site.now_ms()
    if known is None:
        known = Outage(view=ask.subject, opened_ms=opened, damage=ask.damage, status=status, evidence=ask.evidence)
    elif known.opened_ms > opened:  # its key is the moment, so the later one is closed in favour of the earlier
        _write(site, replace(known, status="closed"))
        known = replace(known, opened_ms=opened)
    return _write(site, replace(known, status=status if known.status != "isolated" else "isolated"))


def strike(site: RecoverySite, outage: Outage) -> Outage:
    """Note one more try in vain."""
    return _write(site, replace(outage, strikes=outage.strikes + 1))


def note_damage(site: RecoverySite, outage: Outage, damage: str) -> Outage:
    """Note that it is worse than was seen."""
    return outage if outage.damage == damage else _write(site, replace(outage, damage=damage))


def close_outages(site: RecoverySite, name: QName) -> None:
    """All that was open is over, as of now."""
    for outage in _read_all_open(site, name):
        _write(site, replace(outage, status="closed", closed_ms=server_ms(site)))


def server_ms(site: RecoverySite) -> int:
    """The server's clock: logs, parts and the sensor's cursor go by it."""
    return int(site.server.rows("SELECT toUnixTimestamp64Milli(now64(3))")[0][0])


def _write(site: RecoverySite, outage: Outage) -> Outage:
    written = replace(outage, version=site.journal.versions.next())
    site.journal.run(write_outage(written, site.journal.cluster))
    return written
