"""Rules about privileges: what chmv needs in each database is there, and what only an administrator needs is not.

The list is short on purpose. GRANT statements for several accounts are made from the graph elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from chmv_assets.core.doctor.facts import Facts, Grant
from chmv_assets.core.doctor.finding import Ailment, Rule
from chmv_assets.core.names import quote_identifier, unquote_identifier

OWN_DATABASES = ("chmv", "serving")
# What a rebuild, a deployment and a repair do in a database of the pipeline, and in our own.
NEEDED = (
    "SELECT", "INSERT", "ALTER TABLE", "ALTER VIEW", "CREATE TABLE", "CREATE VIEW", "DROP TABLE", "DROP VIEW", "TRUNCATE", "OPTIMIZE",
    "SYSTEM MERGES", "SYSTEM VIEWS",
)  # fmt: skip
NEEDED_OF_SERVER = ("KILL QUERY", "SYSTEM FLUSH LOGS")
# Who holds one of these can give himself everything else, or stop the server.
EXCESSIVE = (
    "ALL", "ACCESS MANAGEMENT", "CREATE USER", "ALTER USER", "DROP USER", "CREATE ROLE", "ALTER ROLE", "DROP ROLE", "ROLE ADMIN", "IMPERSONATE",
    "CREATE ROW POLICY", "ALTER ROW POLICY", "DROP ROW POLICY", "SYSTEM SHUTDOWN", "SYSTEM", "SYSTEM FAILPOINT", "NAMED COLLECTION ADMIN",
    "displaySecretsInShowAndSelect", "ALLOW SQL SECURITY NONE",
)  # fmt: skip
_LINE = re.compile(r"^(GRANT|REVOKE)\s+(.*?)\s+ON\s+(\S.*?)\s+(?:TO|FROM)\s+.*?(\s+WITH GRANT OPTION)?$", re.DOTALL)


def parse_grants(lines: Iterable[str]) -> tuple[Grant, ...]:
    """SHOW GRANTS as data; privileges on single columns do not count, they are never enough for a table.

    >>> parse_grants(["GRANT SELECT(a, b), INSERT ON `my db`.* TO u WITH GRANT OPTION"])
    (Grant(privileges=frozenset({'INSERT'}), scope='my db.*', with_option=True, is_revoke=False),)
    """
    found: list[Grant] = []
    for line in lines:
        match = _LINE.match(line.strip())
        if match is None:
            continue
        verb, privileges, scope, option = match.groups()
        whole = {word.strip() for word in re.sub(r"[^,()]*\([^)]*\)", "", privileges).split(",")}
        found.append(
            Grant(
                privileges=frozenset(whole - {""}),
                scope=_scope(scope),
                with_option=bool(option),
                is_revoke=verb == "REVOKE",
            )
        )
    return tuple(found)


def _scope(text: str) -> str:
    parts = re.findall(r"`(?:[^`\\]|\\.)*`|[^.`]+", text)
    return ".".join(unquote_identifier(part) for part in parts)


def _ancestors(privilege: str, parents: Mapping[str, str]) -> Iterator[str]:
    seen: set[str] = set()
    while privilege and privilege not in seen:
        seen.add(privilege)
        yield privilege
        privilege = parents.get(privilege, "")
    yield "ALL"


def holds(facts: Facts, privilege: str, database: str = "") -> bool:
    """Whether our user has a privilege in all of a database, or (without one) on the whole server."""
    names = set(_ancestors(privilege, facts.parents))
    scopes = {"*.*", "*"} | ({f"{database}.*"} if database else set())
    lines = [grant for grant in facts.grants or () if grant.scope in scopes and names & grant.privileges]
    if not lines:
        children = [child for child, parent in facts.parents.items() if parent == privilege]
        return bool(children) and all(holds(facts, child, database) for child in children)
    return not any(grant.is_revoke for grant in lines)


def _databases(facts: Facts) -> list[str]:
    kinds = ("external", "function")
    return sorted(
        {name.database for name, made in facts.catalog.objects.items() if made.kind not in kinds} | set(OWN_DATABASES)
    )


def _missing(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if facts.grants is None:
        return
    user = quote_identifier(facts.user)
    lacking: dict[tuple[str, ...], list[str]] = {}
    for database in _databases(facts):
        if lacks := tuple(privilege for privilege in NEEDED if not holds(facts, privilege, database)):
            lacking.setdefault(lacks, []).append(database)
    for lacks, databases in lacking.items():
        fix = [f"GRANT {', '.join(lacks)} ON {quote_identifier(database)}.* TO {user}" for database in databases]
        yield rule.ailment(
            f"user {facts.user}", f"lacks {', '.join(lacks)} on {', '.join(databases)}", "it is granted", *fix
        )
    if lacks := tuple(privilege for privilege in NEEDED_OF_SERVER if not holds(facts, privilege)):
        yield rule.ailment(
            f"user {facts.user}",
            f"lacks {', '.join(lacks)}",
            "it is granted",
            f"GRANT {', '.join(lacks)} ON *.* TO {user}",
        )


def _excessive(facts: Facts, rule: Rule) -> Iterator[Ailment]:
    if facts.grants is None or facts.is_own_engine:
        return
    user = quote_identifier(facts.user)
    given = [grant for grant in facts.grants if not grant.is_revoke]
    held = sorted({privilege for grant in given for privilege in grant.privileges if privilege in EXCESSIVE})
    measured, fix = [], []
    if held:
        measured.append(f"holds {', '.join(held)}")
        fix.append(f"REVOKE {', '.join(held)} ON *.* FROM {user}")
    if optioned := sorted({grant.scope for grant in given if grant.with_option}):
        measured.append(f"may grant on {', '.join(optioned)}")
        fix += [f"REVOKE GRANT OPTION FOR ALL ON {scope} FROM {user}" for scope in optioned if scope != "*"]
    if measured:
        yield rule.ailment(f"user {facts.user}", " and ".join(measured), "no more than the pipeline needs", *fix)


RULES = (
    Rule(
        id="privilege-missing", severity="error", measured="SHOW GRANTS against what chmv does in each database", wanted="all of it", judge=_missing,
        why="A repair would stop half way at the statement that is refused.",
    ),
    Rule(
        id="privilege-excess", severity="warn", measured="SHOW GRANTS; not on the engine that chmv starts itself", wanted="no power over users, roles or the server",
        why="Whoever gets at the service's password has the server.", judge=_excessive,
    ),
)  # fmt: skip
