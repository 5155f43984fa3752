"""Plans without secrets: what is written down has numbered places for them, and the folder fills them again. Pure.

A plan travels: it is reviewed, kept as a file, stored in the journal. A secret of the DDL stays where it is declared. `[HIDDEN 0]` stands for the first
secret of the folder's texts, and so on; a secret that the folder does not hold (the server prints it as `[HIDDEN]`) has no number and cannot be filled.
See docs/adr/0015-secrets-stay-in-the-folder.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chmv_assets.core.compare import Difference
from chmv_assets.core.deploy.changes import Change, Cutover, Plan
from chmv_assets.core.errors import DeployRefused
from chmv_assets.core.secrets import HIDDEN, SLOT, find_secrets, replace_secrets

Folder = Sequence[tuple[str, str]]


def secrets_of(folder: Folder) -> tuple[str, ...]:
    """The secrets of a folder's texts, each once, in the order in which they stand there."""
    found = (text[start:end] for _, text in folder for start, end in find_secrets(text))
    return tuple(dict.fromkeys(secret for secret in found if secret != HIDDEN))


def seal_plan(plan: Plan) -> Plan:
    """The same plan with a place for each secret.

    >>> plan = Plan(plan_id="", made_at="", declared="", live="", folder=(("a.sql", "ENGINE = URL('http://u:pw@h')"),))
    >>> seal_plan(plan).folder[0][1], reveal_plan(seal_plan(plan), plan.folder) == plan
    ("ENGINE = URL('http://u:[HIDDEN 0]@h')", True)
    """
    slots = {secret: f"[HIDDEN {at}]" for at, secret in enumerate(secrets_of(plan.folder))}
    return _every_text(plan, lambda text: _sealed(text, slots))


def _sealed(text: str, slots: Mapping[str, str]) -> str:
    return replace_secrets(text, lambda secret: slots.get(secret, HIDDEN))


def is_sealed(plan: Plan) -> bool:
    """Whether secrets have to be filled in before it can be applied."""
    return any(SLOT.search(text) for _, text in plan.folder)


def reveal_plan(plan: Plan, folder: Folder) -> Plan:
    """The plan with its secrets, from the folder that it was made of; refused if the folder says anything else by now."""
    if not is_sealed(plan):
        return plan
    secrets = secrets_of(folder)
    slots = {secret: f"[HIDDEN {at}]" for at, secret in enumerate(secrets)}
    if [(path, _sealed(text, slots)) for path, text in folder] != [tuple(one) for one in plan.folder]:
        raise DeployRefused(
            f"plan {plan.plan_id}: found a DDL folder that is not the one it was made of but wanted that one. A plan holds no secrets, they are read "
            "from the folder, and it has changed since. Point --ddl (or CHMV_DDL_DIR) at the folder as it was, or plan again."
        )
    return _every_text(plan, lambda text: SLOT.sub(lambda found: secrets[int(found.group(1))], text))


def without_slots(plan: Plan) -> Plan:
    """The plan as the server would show it: `[HIDDEN]` for every secret."""
    return _every_text(plan, lambda text: SLOT.sub(HIDDEN, text))


def require_known_secrets(plan: Plan) -> None:
    """Refuse statements with a secret that nobody knows: the server would take `[HIDDEN]` for the password."""
    for change in plan.changes:
        for sql in (*change.early, *change.late, change.after if change.action in ("switch", "storage") else ""):
            if any(HIDDEN in sql[start:end] for start, end in find_secrets(sql)):
                raise DeployRefused(
                    f"{change.kind.replace('_', ' ')} {change.name}: found the secret `{HIDDEN}` in its statement but wanted the real one. The server does not "
                    "show it, and it would become the password. Write the statement into the folder, better with a named collection, and plan again."
                )


def _every_text(plan: Plan, turned: Callable[[str], str]) -> Plan:
    return replace(
        plan,
        folder=tuple((path, turned(text)) for path, text in plan.folder),
        changes=tuple(_change(one, turned) for one in plan.changes),
        cutovers=tuple(_cutover(one, turned) for one in plan.cutovers),
    )


def _change(one: Change, turned: Callable[[str], str]) -> Change:
    return replace(
        one, before=turned(one.before), after=turned(one.after), early=tuple(map(turned, one.early)), late=tuple(map(turned, one.late)),
        differences=tuple(Difference(d.what, turned(d.declared), turned(d.live), d.is_type) for d in one.differences),
    )  # fmt: skip


def _cutover(one: Cutover, turned: Callable[[str], str]) -> Cutover:
    switches = tuple(replace(s, before=turned(s.before), after=turned(s.after)) for s in one.switches)
    return replace(one, switches=switches)
