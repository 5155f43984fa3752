"""What the tuner's sensor orders from a run: a decision as JSON, and back. Pure.

Invariant: what is read is what was written; anything else is refused before the server is touched.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.names import parse_qname
from chmv_assets.core.tuner import Action, Back, Decision, Kind
from chmv_assets.core.tunings import PARALLELISM, TABLE_SETTINGS, Tuning

_KINDS: tuple[Kind, ...] = ("over-correction", "calm", "dead", "by hand", "watched")


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedBack:
    """A tuning to take back or to settle, by its id."""

    tuning: str
    kind: Kind
    reason: str
    settle: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Steps to do, and tunings to end."""

    actions: tuple[Action, ...] = ()
    backs: tuple[OrderedBack, ...] = ()

    def backs_of(self, tunings: Iterable[Tuning]) -> tuple[Back, ...]:
        """With the tunings that the journal has, in the order in which they were ordered."""
        known = {one.tuning: one for one in tunings}
        return tuple(
            Back(tuning=known[one.tuning], kind=one.kind, reason=one.reason, settle=one.settle)
            for one in self.backs
            if one.tuning in known
        )


def order_of(decision: Decision) -> Order:
    backs = tuple(
        OrderedBack(tuning=one.tuning.tuning, kind=one.kind, reason=one.reason, settle=one.settle) for one in decision.backs
    )  # fmt: skip
    return Order(actions=decision.actions, backs=backs)


def dump_order(order: Order) -> str:
    """As JSON: the run configuration carries it."""
    actions = [
        {
            "subject": str(one.subject), "setting": one.setting, "expected": one.expected, "base": one.base, "value": one.value,
            "reason": one.reason, "numbers": dict(one.numbers),
        }
        for one in order.actions
    ]  # fmt: skip
    backs = [{"tuning": one.tuning, "kind": one.kind, "reason": one.reason, "settle": one.settle} for one in order.backs]  # fmt: skip
    return json.dumps({"actions": actions, "backs": backs}, separators=(",", ":"), sort_keys=True)


def load_order(text: str) -> Order:
    """Read what `dump_order` gave; refuse anything else."""
    try:
        document = json.loads(text)
        return Order(
            actions=tuple(_action(one) for one in document["actions"]),
            backs=tuple(_back(one) for one in document["backs"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ChmvError(
            f"tuner order: found {text[:200]!r} but wanted what `tuner_sensor` writes ({type(error).__name__}: {error}). Nothing was "
            "changed. Launch `tuner_job` from its sensor, or use `chmv tune`."
        ) from error


def _action(one: dict[str, object]) -> Action:
    numbers = one["numbers"]
    if one["setting"] not in (*TABLE_SETTINGS, PARALLELISM) or not isinstance(numbers, dict):
        raise ValueError(one["setting"])
    return Action(
        subject=parse_qname(str(one["subject"]), "default"), setting=str(one["setting"]), expected=int(str(one["expected"])),
        base=int(str(one["base"])), value=int(str(one["value"])), reason=str(one["reason"]),
        numbers={str(name): float(value) for name, value in numbers.items()},
    )  # fmt: skip


def _back(one: dict[str, object]) -> OrderedBack:
    kind = next(known for known in (*_KINDS, None) if known == one["kind"] or known is None)
    if kind is None:
        raise ValueError(one["kind"])
    return OrderedBack(tuning=str(one["tuning"]), kind=kind, reason=str(one["reason"]), settle=bool(one["settle"]))
