"""A dry run cannot lie: what `explain` lists is what is done, in that order, for each protocol and feed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from clickhouse_connect.driver.client import Client
from rebuild_cases import CASES
from rebuild_oracle import Pipe, day

from chmv_assets.core.errors import RebuildRefused
from chmv_assets.core.model import Object
from chmv_assets.core.names import QName
from chmv_assets.core.rebuild_journal import commit_lock
from chmv_assets.core.rebuild_plan import Step
from chmv_assets.core.settings_values import Protocol
from chmv_assets.core.windows import Window
from resources.journal.locks import Locks

WINDOW = day("2026-07-05")
_WORDS = {
    "insert into": "compute",
    "replace partition": "publish",
    "drop chmv.`scratch.": "drop scratch",
    "drop chmv.`replay.": "drop replay",
}


def outline(steps: Sequence[Step]) -> list[tuple[str, str]]:
    """Kinds and names; scratches of a rebuild are called by its id, which a plan does not know."""
    return [(step.kind, "scratch" if step.name.table.startswith("scratch.") else str(step.name)) for step in steps]


def said(pipe: Pipe, since: int) -> list[str]:
    """What the executor did, in the words of a plan."""
    found = [kind for line in pipe.logged[since:] for word, kind in _WORDS.items() if line.startswith(word)]
    return [kind for at, kind in enumerate(found) if at == 0 or kind != "publish" or found[at - 1] != "publish"]


@pytest.mark.parametrize(("case", "protocol"), [("two_views", "gated"), ("opaque", "gated"), ("two_views", "whole")])
def test_steps_of_a_gate_are_those_of_the_plan(make: Callable[..., Pipe], case: str, protocol: Protocol) -> None:
    pipe = make(CASES[case], f"plan_{case}_{protocol}", rows=300)
    target = pipe.catalog.objects[pipe.name("target")]
    window = None if protocol == "whole" else WINDOW
    chosen, why, steps = pipe.rebuilder().explain(target, window, protocol)
    done: list[Step] = []
    published = pipe.rebuilder().publish(target, window, protocol, lambda _number, step: done.append(step))
    assert outline(done) == outline(steps)
    assert (published.protocol, published.why) == (chosen, why)


def test_chain_is_explained_as_a_chain(make: Callable[..., Pipe]) -> None:
    pipe = make(CASES["chained"], "plan_chain", rows=300)
    first = pipe.catalog.objects[pipe.name("hours")]
    chosen, why, steps = pipe.rebuilder().explain(first, WINDOW, downstream=True)
    done: list[Step] = []
    published = pipe.rebuilder().publish_chain(first, WINDOW, lambda _number, step: done.append(step))
    assert outline(done) == outline(steps)
    assert (published.protocol, published.why) == (chosen, why)
    assert {str(step.name) for step in steps if step.kind == "publish"} == {
        str(pipe.name("hours")), *map(str, published.downstream)
    }  # fmt: skip
    with pytest.raises(RebuildRefused, match="wanted the gated protocol"):
        pipe.rebuilder().explain(first, WINDOW, "closed", downstream=True)
    with pytest.raises(RebuildRefused, match="found a replay for all that is downstream"):
        pipe.rebuilder().explain(first, WINDOW, feed="replay", downstream=True)


@pytest.mark.parametrize("protocol", ["closed", "owned"])
def test_quiet_protocols_do_what_the_plan_says(make: Callable[..., Pipe], protocol: Protocol) -> None:
    pipe = make(CASES["two_views"], f"plan_{protocol}", rows=300)
    target, root = pipe.catalog.objects[pipe.name("target")], pipe.name("source")
    chosen, why, steps = pipe.rebuilder().explain(target, WINDOW, protocol)
    since = len(pipe.logged)
    published = pipe.rebuilder().publish(target, WINDOW, protocol)
    assert (published.protocol, published.why) == (chosen, why) == (protocol, "asked for")
    kinds = [step.kind for step in steps]
    assert [kind for kind in said(pipe, since) if kind == "compute"] == [kind for kind in kinds if kind == "compute"]
    assert kinds.count("settle") == 1 and kinds.count("compare") == 2
    owned = [Step("hold commits", root), Step("release commits", root)]
    assert [step for step in steps if "commits" in step.kind] == (owned if protocol == "owned" else [])
    assert steps[0] == (owned[0] if protocol == "owned" else Step("drain", target.name))


def test_replay_is_explained_with_its_tables_and_locks(make: Callable[..., Pipe], clickhouse: Client) -> None:
    pipe = make(CASES["additive"], "plan_replay", rows=300)
    target, root = pipe.catalog.objects[pipe.name("target")], pipe.name("source")
    holders: list[str] = []

    def replay(source: Object, _window: Window | None, archive: QName) -> int:
        holders.append(Locks(pipe.server).holder(commit_lock(source.name)))
        clickhouse.command(f"CREATE TABLE {archive.sql} AS {source.name.sql}")
        clickhouse.command(f"INSERT INTO {archive.sql} SELECT * FROM {source.name.sql}")
        return 0

    rebuilder = pipe.rebuilder(replay=replay)
    chosen, why, steps = rebuilder.explain(target, WINDOW, feed="replay")
    assert holders == []  # nothing is done for a plan
    since = len(pipe.logged)
    published = rebuilder.publish(target, WINDOW, feed="replay")
    assert (published.protocol, published.why) == (chosen, why) == ("owned", "replayed: asked for a replay")
    kinds = [step.kind for step in steps]
    assert kinds == [
        "hold commits", "replay", "drain", "settle", "scratch", "compute", "compare", "publish", "drain", "compare", "drop scratch",
        "drop replay", "release commits",
    ]  # fmt: skip
    assert {step.name for step in steps if step.kind in ("hold commits", "replay")} == {root}
    assert said(pipe, since) == [kind for kind in kinds if kind in _WORDS.values()]
    assert len(holders) == 1 and holders[0] != ""
    assert pipe.rows(target.name) == pipe.truth()
    assert Locks(pipe.server).holder(commit_lock(root)) == ""


def test_what_no_view_writes_is_refused(make: Callable[..., Pipe]) -> None:
    pipe = make(CASES["additive"], "plan_refused", rows=30)
    for suffix, sentence in {
        "source": "found no view that writes into it",
        "mv": "found a view but wanted the target",
    }.items():
        for ask in (pipe.rebuilder().explain, pipe.rebuilder().publish):
            with pytest.raises(RebuildRefused, match=sentence):
                ask(pipe.catalog.objects[pipe.name(suffix)], WINDOW)
