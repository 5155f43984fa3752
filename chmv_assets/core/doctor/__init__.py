"""The doctor: facts about a pipeline and its server in, ailments with their cures out. Pure; `resources.doctor` reads the facts.

Each rule is one thought in a file of its kind. Rules do not know each other, and none changes anything.
"""

from chmv_assets.core.doctor import disks, insert_limits, pools, privileges, profile, server, tables
from chmv_assets.core.doctor.facts import Facts
from chmv_assets.core.doctor.finding import SERVER, SEVERITIES, Ailment, Rule, Severity

__all__ = ["RULES", "SERVER", "SERVER_RULES", "SEVERITIES", "Ailment", "Facts", "Rule", "Severity", "examine", "worst"]

# Of the server and of the state of its tables, not of their DDL, which `chmv check` judges without a server.
SERVER_RULES: tuple[Rule, ...] = (*server.RULES, *pools.RULES, *disks.RULES, *profile.RULES, *privileges.RULES)
RULES: tuple[Rule, ...] = (*SERVER_RULES, *insert_limits.RULES, *tables.RULES)


def examine(facts: Facts, rules: tuple[Rule, ...] = RULES) -> tuple[Ailment, ...]:
    """Everything that is wrong: errors first, otherwise in the order of rules and objects."""
    found = [ailment for rule in rules for ailment in rule.judge(facts, rule)]
    return tuple(sorted(found, key=lambda ailment: SEVERITIES.index(ailment.severity)))


def worst(found: tuple[Ailment, ...]) -> Severity | None:
    """The highest severity, if there is any."""
    return found[0].severity if found else None
