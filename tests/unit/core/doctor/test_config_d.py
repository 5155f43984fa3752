"""The files for the operator: well-formed, the same for the same facts, from what was measured, never below what runs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace

from test_doctor_rules import GIB, HEALTHY, SESSION, replicated, sample, settings_of

from chmv_assets.core.doctor.config_d import INGEST_PROFILE, RECOVERY_PROFILE, render_config_d
from chmv_assets.core.doctor.facts import Facts

POOLS, MERGE_TREE, PROFILES = "config.d/chmv_pools.xml", "config.d/chmv_merge_tree.xml", "users.d/chmv_profiles.xml"
KNOWN = {**SESSION, **dict.fromkeys(("max_memory_usage", "max_bytes_before_external_sort"), SESSION["readonly"])}


def value(facts: Facts, file: str, path: str) -> str | None:
    return ET.fromstring(render_config_d(facts)[file]).findtext(path)


def test_the_same_facts_give_the_same_bytes_and_every_value_has_a_reason() -> None:
    files = render_config_d(HEALTHY)
    assert files == render_config_d(replace(HEALTHY)) and set(files) == {POOLS, MERGE_TREE, PROFILES}
    for text in files.values():
        lines = [line.strip() for line in text.splitlines()]
        values = [at for at, line in enumerate(lines) if line.startswith("<") and "</" in line and line.count("<") == 2]
        assert values and all(lines[at - 1].startswith("<!--") for at in values)


def test_pools_follow_cores_and_fan_out_and_never_shrink() -> None:
    assert value(HEALTHY, POOLS, "background_pool_size") == "4"
    assert value(replace(HEALTHY, cores=16), POOLS, "background_pool_size") == "16"
    assert value(replace(HEALTHY, server={"background_pool_size": "64"}), POOLS, "background_pool_size") == "64"
    assert value(replace(HEALTHY, settings=settings_of(pool_per_table=50)), POOLS, "background_pool_size") == "50"


def test_part_limits_keep_their_distance() -> None:
    crossed = replace(HEALTHY, merge_tree={"parts_to_delay_insert": "3000", "parts_to_throw_insert": "3000"})
    assert (
        value(crossed, MERGE_TREE, "merge_tree/parts_to_delay_insert"),
        value(crossed, MERGE_TREE, "merge_tree/parts_to_throw_insert"),
    ) == ("3000", "9000")


def test_profiles_bound_what_a_recovery_may_take() -> None:
    facts = replace(HEALTHY, session=KNOWN, samples=sample(130), settings=settings_of(recovery_seconds=120))
    recovery = f"profiles/{RECOVERY_PROFILE}/"
    assert value(facts, PROFILES, recovery + "max_execution_time") == "120"
    assert value(facts, PROFILES, recovery + "max_memory_usage") == str(4 * GIB)
    assert value(facts, PROFILES, recovery + "max_bytes_before_external_sort") == str(GIB)
    assert value(facts, PROFILES, recovery + "sort_overflow_mode") == "throw"
    assert value(facts, PROFILES, recovery + "max_partitions_per_insert_block") == "300"
    assert value(facts, PROFILES, recovery + "read_overflow_mode") is None  # this server does not know it
    assert value(facts, PROFILES, f"profiles/{INGEST_PROFILE}/insert_quorum") is None
    assert (
        value(replace(facts, tables=replicated(2, 2)), PROFILES, f"profiles/{INGEST_PROFILE}/insert_quorum") == "auto"
    )
