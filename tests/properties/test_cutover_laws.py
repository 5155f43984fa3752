"""Laws of cutovers: what shares a member is one party, and no two parties do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chmv_assets.core.catalog import SourceFile, build_catalog
from chmv_assets.core.deploy.changes import Change
from chmv_assets.core.deploy.cutovers import build_cutovers
from chmv_assets.core.names import QName

_SIZE = 6


@given(st.lists(st.tuples(st.integers(0, _SIZE - 1), st.integers(0, _SIZE - 1)), max_size=8), st.permutations(range(8)))
def test_targets_that_hang_together_are_one_cutover_and_no_others(
    pairs: list[tuple[int, int]], order: list[int]
) -> None:
    """A view for every pair, from the smaller number to the larger: chains, forks and targets of several views."""
    chain = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    tables = "".join(f"CREATE TABLE d.t{at} (k UInt8) ENGINE = MergeTree ORDER BY k;\n" for at in range(_SIZE))
    views = "".join(
        f"CREATE MATERIALIZED VIEW d.v{number} TO d.t{dest} AS SELECT k FROM d.t{source};\n"
        for number, (source, dest) in enumerate(chain)
    )
    declared = build_catalog([SourceFile(path="a.sql", text=tables + views)], default_database="d")
    nothing = build_catalog([], default_database="d")
    switched = [
        Change(name=QName("d", f"v{number}"), kind="materialized_view", action="switch", risk="safe", why="")
        for number in sorted(range(len(chain)), key=order.index)
    ]
    made = build_cutovers(declared, nothing, switched)
    found = {frozenset(target.table for target in one.targets): one for one in made}
    written = {dest for _, dest in chain}
    assert set(found) == _components(chain, written)
    assert sorted(switch.view.table for one in made for switch in one.switches) == sorted(
        change.name.table for change in switched
    )
    for targets, one in found.items():
        assert {f"t{chain[int(switch.view.table[1:])][1]}" for switch in one.switches} == targets
        assert [switch.view for switch in one.switches] == [
            change.name for change in switched if change.name in {switch.view for switch in one.switches}
        ], "in the order of the changes"


def _components(chain: list[tuple[int, int]], written: set[int]) -> set[frozenset[str]]:
    """Targets with the targets that are computed from them, however far away; by walking until nothing is new."""
    left, found = set(written), set()
    while left:
        party = {left.pop()}
        while (
            more := {other for a, b in chain for one, other in ((a, b), (b, a)) if one in party and other in written}
            - party
        ):
            party |= more
        left -= party
        found.add(frozenset(f"t{at}" for at in party))
    return found
