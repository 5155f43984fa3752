"""Laws of catalogs over random pipelines rendered to DDL text: layers, order, splitting, codec, respelling."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from chmv_assets.core import catalog_codec
from chmv_assets.core.catalog import Catalog, SourceFile, build_catalog
from chmv_assets.core.compare import Comparison, compare_objects
from chmv_assets.core.names import QName, quote_identifier
from chmv_assets.core.render import graph_document

NAMES = st.text(alphabet="ab .`\"'\\é\n-;/*😀", min_size=1, max_size=8)
EXAMPLES = settings(max_examples=60, deadline=None)


@dataclass(frozen=True)
class Random:
    """A pipeline as statements, and the edges it must have."""

    statements: tuple[str, ...]
    edges: frozenset[tuple[str, str, str]]  # names as `database.table` of QName


@st.composite
def pipelines(draw: st.DrawFn) -> Random:
    """Tables in an order; views read from earlier tables and write into later ones, so there is no cycle."""
    count = draw(st.integers(2, 7))
    names = [QName(draw(st.sampled_from(["d", "e f"])), f"{i}{draw(NAMES)}") for i in range(count)]
    engines = ["MergeTree", "SummingMergeTree", "ReplacingMergeTree", "AggregatingMergeTree"]
    statements = [
        f"CREATE TABLE {name.sql} (ts DateTime, k UInt8, {quote_identifier('c' + name.table)} UInt64) "
        f"ENGINE = {draw(st.sampled_from(engines))} PARTITION BY {draw(st.sampled_from(['toDate(ts)', 'toYYYYMM(ts)', 'k']))} ORDER BY k"
        for name in names
    ]
    edges: set[tuple[str, str, str]] = set()
    for number in range(draw(st.integers(1, 6))):
        source = draw(st.integers(0, count - 2))
        target = draw(st.integers(source + 1, count - 1))
        lookups = sorted(draw(st.sets(st.integers(0, target - 1), max_size=2)) - {source})
        view = QName("d", f"v{number}")
        joins = "".join(f" LEFT JOIN {names[i].sql} AS j{i} ON s.k = j{i}.k" for i in lookups)
        aggregate = draw(st.sampled_from(["s.ts AS ts, s.k AS k", "toDate(s.ts) AS ts, s.k AS k, count() AS n"]))
        tail = " GROUP BY ts, k" if "count" in aggregate else ""
        select = f"SELECT {aggregate} FROM {names[source].sql} AS s{joins}{tail}"
        if draw(st.booleans()):
            select = f"WITH w AS ({select}) SELECT * FROM w"
        statements.append(f"CREATE MATERIALIZED VIEW {view.sql} TO {names[target].sql} AS {select}")
        edges |= {(str(names[source]), "trigger", str(view)), (str(view), "writes", str(names[target]))}
        edges |= {(str(names[i]), "lookup", str(view)) for i in lookups}
    return Random(tuple(statements), frozenset(edges))


def read(statements: tuple[str, ...]) -> Catalog:
    return build_catalog([SourceFile(path="all.sql", text=";\n".join(statements))], default_database="d")


def found_edges(catalog: Catalog) -> set[tuple[str, str, str]]:
    return {(str(edge.source), edge.kind, str(edge.dest)) for edge in catalog.edges}


@EXAMPLES
@given(pipelines())
def test_edges_are_exactly_those_that_were_written(made: Random) -> None:
    catalog = read(made.statements)
    assert catalog.errors == ()
    assert found_edges(catalog) == made.edges


@EXAMPLES
@given(pipelines())
def test_every_node_stands_after_all_it_depends_on(made: Random) -> None:
    catalog = read(made.statements)
    layers = catalog.layers()
    level = {name: number for number, layer in enumerate(layers) for name in layer}
    assert set(level) == set(catalog.objects)
    assert sum(map(len, layers)) == len(catalog.objects), "each node once"
    assert all(level[edge.source] < level[edge.dest] for edge in catalog.edges)
    upstream = {name: [e.source for e in catalog.edges if e.dest == name] for name in catalog.objects}
    assert all(level[n] == max((level[u] + 1 for u in ups), default=0) for n, ups in upstream.items()), (
        "as early as can be"
    )


@EXAMPLES
@given(pipelines(), st.randoms(use_true_random=False))
def test_order_and_splitting_of_files_do_not_matter(made: Random, chance: random.Random) -> None:
    shuffled = list(made.statements)
    chance.shuffle(shuffled)
    files: list[SourceFile] = []
    while shuffled:
        size = chance.randint(1, 3)
        files.append(
            SourceFile(path=f"{chance.randrange(10**6)}_{len(files)}.sql", text=";\n".join(shuffled[:size]) + ";")
        )
        shuffled = shuffled[size:]
    one, two = read(made.statements), build_catalog(files, default_database="d")
    assert found_edges(one) == found_edges(two)
    assert one.layers() == two.layers()
    assert dict(one.facts) == dict(two.facts)
    assert dict(one.schemes) == dict(two.schemes)


@EXAMPLES
@given(pipelines())
def test_codec_gives_back_what_it_took(made: Random) -> None:
    catalog = read((*made.statements, "NONSENSE", "CREATE VIEW d.broken AS SELECT FROM WHERE"))
    back = catalog_codec.decode(json.loads(json.dumps(catalog_codec.encode(catalog))))
    assert back == catalog
    assert graph_document(back) == graph_document(catalog)


@EXAMPLES
@given(pipelines())
def test_a_second_reading_is_equal_object_by_object(made: Random) -> None:
    one = read(made.statements)
    two = read(tuple(f"/* x ; */ {statement} -- y ' \n" for statement in made.statements))
    for name, declared in one.objects.items():
        assert compare_objects(declared, two.objects[name], "d") == Comparison("equal")
        assert declared.digest == two.objects[name].digest


@EXAMPLES
@given(pipelines(), st.data())
def test_a_way_back_makes_a_cycle_with_a_path_along_edges(made: Random, data: st.DataObject) -> None:
    catalog = read(made.statements)
    view = data.draw(st.sampled_from(sorted(n for n, o in catalog.objects.items() if o.kind == "materialized_view")))
    source, target = catalog.trigger_of(view), catalog.objects[view].target
    assert source is not None
    assert target is not None
    back = f"CREATE MATERIALIZED VIEW d.back TO {source.sql} AS SELECT ts, k FROM {target.sql}"
    closed = read((*made.statements, back))
    (finding,) = [finding for finding in closed.errors if finding.code == "cycle"]
    edges = {(str(edge.source), str(edge.dest)) for edge in closed.edges}
    body = finding.message.split("found the cycle ", 1)[1].rsplit(" but wanted none", 1)[0]
    path = body.split(" → ")
    assert path[0] == path[-1]
    assert all(step in edges for step in pairwise(path))
