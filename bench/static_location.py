"""The plain alternative: a Dagster package with the same assets, written out as a person would write them.

Same keys, dependencies, groups, partitions, mappings and the same split of executable assets and bare specs; by wish with the
same metadata (schema, lineage, DDL, code reference) too. No checks and no jobs. Made from chmv's own specs, so that both
sides hold the same graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import dagster as dg

_ASSETS_PER_MODULE = 25  # one huge module is slow for reasons of its own: finding a line number is linear in its size
_SHARED = """import warnings

import dagster as dg

warnings.filterwarnings("ignore", category=dg.BetaWarning)


class Server(dg.ConfigurableResource):
    url: str = ""


OVERLAP = dg.TimeWindowPartitionMapping(allow_nonexistent_upstream_partitions=True)
EVERYTHING = dg.AllPartitionMapping()
"""
_DEFINITIONS = """import dagster as dg

from . import {modules}
from .shared import Server

defs = dg.Definitions(
    assets=[asset for module in [{modules}] for asset in module.ASSETS],
    resources={{"server": Server()}},
    executor=dg.in_process_executor,
)
"""


def write_package(folder: Path, assets: Iterable[dg.AssetsDefinition | dg.AssetSpec], *, with_metadata: bool) -> None:
    """Write a package of modules; `with_metadata` says everything about each asset that chmv says."""
    folder.mkdir()
    partitions: dict[Any, str] = {None: "None"}
    modules: dict[str, list[str]] = {}
    for number, made in enumerate(assets):
        spec = made if isinstance(made, dg.AssetSpec) else next(iter(made.specs))
        shared = partitions.setdefault(spec.partitions_def, f"PARTITIONS_{len(partitions)}")
        name = f"a{number}_{re.sub(r'[^A-Za-z0-9_]', '_', spec.key.path[-1])}"
        block = _block(name, made, spec, shared, with_metadata)
        modules.setdefault(f"part_{number // _ASSETS_PER_MODULE:03d}", []).append(f"{block}\nASSETS.append({name})")
    shared_lines = [f"{name} = {_partitions(made)}" for made, name in partitions.items() if made is not None]
    (folder / "shared.py").write_text("\n".join([_SHARED, *shared_lines, ""]), encoding="utf-8")
    for module, blocks in modules.items():
        head = f"import dagster as dg\n\nfrom {folder.name}.shared import *\n\nASSETS = []\n"
        (folder / f"{module}.py").write_text("\n".join([head, *blocks, ""]), encoding="utf-8")
    (folder / "__init__.py").write_text(_DEFINITIONS.format(modules=", ".join(modules)), encoding="utf-8")


def _block(name: str, made: dg.AssetsDefinition | dg.AssetSpec, spec: dg.AssetSpec, partitions: str, full: bool) -> str:
    deps = ", ".join(_dep(dep) for dep in spec.deps)
    words = f"key={list(spec.key.path)!r}, deps=[{deps}], partitions_def={partitions}, group_name={spec.group_name!r}"
    if full:
        words += f", description={spec.description!r}, tags={dict(spec.tags)!r}, code_version={spec.code_version!r}"
        words += f", metadata={_literal(dict(spec.metadata))}"
    if isinstance(made, dg.AssetSpec):
        return f"{name} = dg.AssetSpec({words})"
    policy = next(iter(made.specs)).partitions_def and made.backfill_policy
    if policy:
        words += f", backfill_policy=dg.BackfillPolicy.multi_run({policy.max_partitions_per_run})"
    body = "    server.url.strip()\n"
    return f"\n@dg.asset({words})\ndef {name}(context: dg.AssetExecutionContext, server: Server) -> None:\n{body}"


def _dep(dep: dg.AssetDep) -> str:
    mapping = {"TimeWindowPartitionMapping": "OVERLAP", "AllPartitionMapping": "EVERYTHING", "NoneType": "None"}
    key = f"dg.AssetKey({list(dep.asset_key.path)!r})"
    return f"dg.AssetDep({key}, partition_mapping={mapping[type(dep.partition_mapping).__name__]})"


def _partitions(made: dg.TimeWindowPartitionsDefinition) -> str:
    start = made.start.strftime(made.fmt)
    return (
        f"dg.TimeWindowPartitionsDefinition(start={start!r}, fmt={made.fmt!r}, cron_schedule={made.cron_schedule!r}, "
        f"timezone={made.timezone!r}, end_offset={made.end_offset})"
    )


def _literal(value: Any) -> str:
    """Write a metadata value as the call that makes it."""
    arguments = _ARGUMENTS.get(type(value))
    if arguments is not None:  # first, because Dagster's records are tuples too
        words = ", ".join(f"{word}={_literal(getattr(value, word))}" for word in arguments)
        return f"dg.{type(value).__name__}({words})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {_literal(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_literal(one) for one in value) + "]"
    return repr(value)


_ARGUMENTS: dict[type, tuple[str, ...]] = {
    dg.TableSchema: ("columns", "constraints"),
    dg.TableColumn: ("name", "type", "description", "constraints"),
    dg.TableColumnConstraints: ("nullable", "unique", "other"),
    dg.TableConstraints: ("other",),
    dg.TableSchemaMetadataValue: ("schema",),
    dg.TableColumnLineage: ("deps_by_column",),
    dg.TableColumnLineageMetadataValue: ("column_lineage",),
    dg.AssetKey: ("path",),
    dg.TableColumnDep: ("asset_key", "column_name"),
    dg.TextMetadataValue: ("text",),
    dg.MarkdownMetadataValue: ("md_str",),
    dg.CodeReferencesMetadataValue: ("code_references",),
    dg.LocalFileCodeReference: ("file_path", "line_number", "label"),
}
