"""The privilege matrix: every part of the system under every account, on a server that asks for all grants; and none of the grants is idle.

`-s` prints the table. A few parts that mostly wait are in it with CHMV_THOROUGH=1 only.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

import pytest
from privilege_parts import PARTS, is_used, matrix, outcome, run, used_privileges
from privilege_site import INSERT, PrivilegeSite, Variant, all_grants, close_site, open_site, variants_of

from chmv_assets.core.grants import ACCOUNTS, Account, Grant

# What only an ingest with Spark needs: tests/spark/test_ingest_privileges.py.
BY_SPARK = ("SHOW TABLES", "SELECT ON `chmv`.`diversions`", "SELECT ON `chmv`.`tunings`")
BY_SLOW = (
    "ALTER VIEW MODIFY QUERY",
    "SELECT ON system.grants",
)  # a fenced rebuild, a view that was changed: parts of the thorough matrix
THOROUGH = bool(os.environ.get("CHMV_THOROUGH"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivilegeSite]:
    made = open_site(tmp_path_factory.mktemp("privileges"))
    yield made
    close_site(made)


def test_every_part_works_under_its_account_and_is_refused_under_the_others(site: PrivilegeSite) -> None:
    cells = list(matrix(site, slow=THOROUGH))
    found = {(part, account): outcome for part, account, _, outcome in cells}
    print(f"\n{'':32}" + "".join(f"{account:12}" for account in ACCOUNTS))
    for part in dict.fromkeys(cell[0] for cell in cells):
        print(f"{part:32}" + "".join(f"{found[part, account][:400]:12}" for account in ACCOUNTS))
    assert len(cells) >= 3 * (len(PARTS) - 6)
    assert [cell for cell in cells if cell[2] != cell[3]] == []


def idle(site: PrivilegeSite, account: Account) -> list[tuple[str, Grant]]:
    used = used_privileges(site, account)
    grants = all_grants(site.pipeline, account)
    return [(one, grant) for grant in grants for one in grant.privileges if not is_used(one, grant, used)]


@pytest.mark.parametrize("account", ACCOUNTS)
def test_no_grant_is_idle(site: PrivilegeSite, account: Account) -> None:
    """By the server's own account of which privileges the queries of the matrix have used."""
    found = [f"{one} ON {grant.on} ({grant.why})" for one, grant in idle(site, account)]
    found = [one for one in found if account != "ingester" or not one.startswith(BY_SPARK)]
    found = [one for one in found if THOROUGH or not one.startswith(BY_SLOW)]
    print(*found, sep="\n")
    assert found == []


@pytest.mark.thorough  # some hundred accounts
@pytest.mark.parametrize("account", ["reader", "ingester"])
def test_taking_any_privilege_away_breaks_something(tmp_path_factory: pytest.TempPathFactory, account: Account) -> None:
    made = open_site(tmp_path_factory.mktemp("variants"), [account])
    try:
        for name, part, _ in sorted(PARTS, key=lambda one: one[0] == "snapshot"):
            if name in ("deploy from nothing", "insert rows", "refresh a view", "snapshot"):
                assert outcome(made, part, "recovery") == "works"
        run(
            made, "recovery", INSERT
        )  # rows that no snapshot has: without its target a serving view shows the copies of before
        variants = variants_of(made.pipeline, account)
        variants = [one for one in variants if not one.taken.startswith(BY_SPARK)]
        idle = [one.taken for one in variants if not breaks(made, one)]
        print(f"{account}: {len(variants)} privileges, each taken away alone; nothing broke without {idle or 'any'}")
        assert idle == []
    finally:
        close_site(made)


def breaks(made: PrivilegeSite, variant: Variant) -> bool:
    """Whether a part that the account is for is refused to it, or shows it less."""
    without = replace(made, user=variant.user)
    mine = [part for name, part, allowed in PARTS if variant.account in allowed]
    for part in mine:
        made.batches += 1
        without.batches = made.batches * 1000
        try:
            found = outcome(without, part, variant.account)
        except Exception:  # refused in another way: a table that it does not see is missing to it
            return True
        if found != "works":
            return True
    return False
