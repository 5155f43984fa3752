"""Does a window of a target equal what its views' queries give over their sources? The question, as SQL.

Expected is the union of the views' own SELECTs, restricted to the window as a rebuild does it, with columns placed by name as an INSERT places
them; actual is the target. Both are brought to one normal form (`normal_form`) and compared key by key, in one statement that gives
numbers only, and one that shows some of the keys that differ. A column that cannot be compared is listed with the reason.
Pure; the statements are in `reconcile_sql`, and `resources.reconcile` asks the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from chmv_assets.core.measures import LeftOut, is_repeatable, read_simple_type, read_state_type
from chmv_assets.core.model import Object, ViewFacts, family
from chmv_assets.core.names import QName, quote_identifier, quote_string
from chmv_assets.core.normal_form import NormalForm, build_normal_form
from chmv_assets.core.rebuild import Feed
from chmv_assets.core.retention import forgotten_before, tell_retention
from chmv_assets.core.volatile import volatile_calls, volatile_outputs
from chmv_assets.core.windows import Window, window_predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredColumn:
    """A column of the target as the server has it."""

    name: str
    type: str
    default_kind: str = ""
    default: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one view should have written: its SELECT, restricted to the window, and the columns it gives."""

    view: Object
    facts: ViewFacts | None
    select: str
    outputs: tuple[tuple[str, str], ...]  # name and type of what `select` gives
    source: Object | None = None  # whose inserts fire the view


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two sides in one form."""

    target: QName
    form: NormalForm
    expected: str
    actual: str
    opaque: tuple[str, ...] = ()  # why a difference need not be a defect, one sentence per view

    @property
    def compared(self) -> tuple[str, ...]:
        """Labels of what is compared, keys first."""
        keys = [label for label, _ in self.form.keys if label not in self.form.hidden_keys]
        return (*keys, *(measure.label for measure in self.form.measures))


def build_comparison(
    target: Object, columns: Sequence[StoredColumn], shares: Sequence[Share], condition: str
) -> Comparison:
    """Put both sides together; `condition` restricts the target to the window, or is empty. Raises CannotCompare."""
    stored = {column.name: column for column in columns if column.default_kind not in ("ALIAS", "EPHEMERAL")}
    left_out = tuple(_left_out(columns, shares))
    form = build_normal_form(target, {name: column.type for name, column in stored.items()}, left_out)
    hidden = {one.column for one in left_out}
    names = [name for name in stored if name not in hidden]
    expected = " UNION ALL ".join(_placed(share, columns, names) for share in shares)
    where = f" WHERE {condition}" if condition else ""
    actual = f"SELECT {', '.join(map(quote_identifier, names))} FROM {target.name.sql}{where}"
    return Comparison(target=target.name, form=form, expected=expected, actual=actual, opaque=tuple(_opaque(shares)))


def window_condition(columns: Sequence[StoredColumn], feed: Feed, zone: str) -> str:
    """What selects the feed's window in the target; nothing for the whole of it."""
    if feed.window is None:
        return ""
    kind = next((column.type for column in columns if column.name == feed.time_column), "")
    return window_predicate(quote_identifier(feed.time_column), kind, feed.window, zone)


def _left_out(columns: Sequence[StoredColumn], shares: Sequence[Share]) -> Iterator[LeftOut]:
    """Columns that would not come out the same if they were computed again, each once."""
    for column in columns:
        if column.default_kind == "ALIAS":
            yield LeftOut(column.name, "it is an ALIAS, computed when it is read")
        elif column.default_kind != "EPHEMERAL" and (reason := _not_repeatable(column, shares)):
            yield LeftOut(column.name, reason)


def _not_repeatable(column: StoredColumn, shares: Sequence[Share]) -> str:
    merges = read_state_type(column.type) is not None or read_simple_type(column.type) is not None
    for share in shares:
        given = column.name in dict(share.outputs) and column.default_kind != "MATERIALIZED"
        if not given and (calls := volatile_calls(column.default)):
            return f"{share.view.name} does not give it, and its default calls {calls[0]}()"
        if not given:
            continue
        if call := volatile_outputs(share.view.select)[0].get(column.name):
            return f"{share.view.name} computes it with {call}()"
        function = dict(share.facts.aggregates).get(column.name) if share.facts is not None else None
        if function is not None and not is_repeatable(function, merges=merges):
            return f"{share.view.name} computes it with {function}(), which depends on the order of rows"
        if function is not None and not merges and "Float" in column.type:
            return f"{share.view.name} computes it with {function}() over floats, which depends on the order of rows"
    return ""


def _placed(share: Share, columns: Sequence[StoredColumn], names: Sequence[str]) -> str:
    """A view's rows in the columns of its target, as an INSERT would place them."""
    given = dict(share.outputs)
    inner: list[str] = []
    computed: list[str] = []
    for column in columns:
        name = quote_identifier(column.name)
        if column.name in given and column.default_kind not in ("MATERIALIZED", "ALIAS"):
            inner.append(f"{_cast(name, given[column.name], column.type)} AS {name}")
        elif column.default and column.default_kind != "ALIAS":
            computed.append(f"CAST({column.default}, {quote_string(column.type)}) AS {name}")
        elif column.default_kind != "ALIAS":
            inner.append(f"defaultValueOfTypeName({quote_string(column.type)}) AS {name}")
    relation = f"SELECT {', '.join(inner)} FROM ({share.select})"
    if computed:
        relation = f"SELECT *, {', '.join(computed)} FROM ({relation})"
    return f"SELECT {', '.join(map(quote_identifier, names))} FROM ({relation})"


def _cast(name: str, given: str, wanted: str) -> str:
    if given == wanted:
        return name
    if "Nullable(" in given and "Nullable(" not in wanted:  # an INSERT takes the default for NULL
        return f"ifNull(CAST({name}, {quote_string(f'Nullable({wanted})')}), defaultValueOfTypeName({quote_string(wanted)}))"
    return f"CAST({name}, {quote_string(wanted)})"


def _opaque(shares: Sequence[Share]) -> Iterator[str]:
    for share in shares:
        name = share.view.name
        if share.view.kind == "refreshable_view":
            yield f"{name} refreshes the whole table: until its next refresh the table shows its sources as they were"
            continue
        if share.facts is None or share.facts.view_class == "opaque":
            why = share.facts.why if share.facts is not None else "its SELECT could not be read"
            yield (
                f"{name} is opaque ({why}): what it wrote depended on what else there was when its rows came in, so a difference may be "
                "history and no loss; a rebuild makes the target what the views give now"
            )
        if share.source is not None and family(share.source.engine) not in ("plain", "summing", "aggregating"):
            yield f"{share.source.name} is {share.source.engine}, whose merges remove rows that {name} has seen"
        elsewhere = volatile_outputs(share.view.select)[1]
        if elsewhere:
            yield f"{name} calls {', '.join(f'{call}()' for call in elsewhere)}, which gave other values when its rows came in"


def eaten_by_ttl(table: Object, window: Window | None, now: datetime) -> str:
    """Why a table cannot hold all rows of a window any more, or nothing.

    Without a window all of the past is asked for, so any TTL takes part of it.
    """
    since = forgotten_before(table, now)
    if since is None or (window is not None and window.start >= since):
        return ""
    asked = f"the window starts {window.start:%Y-%m-%d %H:%M}" if window is not None else "the whole table is asked for"
    return f"{asked} but {table.name} {tell_retention(table, since)}"


def source_filters(target: QName, feeds: Sequence[Feed]) -> Mapping[QName, str]:
    """Conditions that narrow what is read of the sources, where that cannot touch any other reading of the same table."""
    if any(reference.kind == "lookup" for feed in feeds for reference in feed.view.references):
        feeds = feeds if len(feeds) == 1 else ()
    by_source: dict[QName, list[str]] = {}
    for feed in feeds:
        by_source.setdefault(feed.source.name, []).append(feed.source_filter)
    return {
        name: " OR ".join(dict.fromkeys(filters))
        for name, filters in by_source.items()
        if all(filters) and name != target
    }
