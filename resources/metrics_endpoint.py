"""The metrics, and the page of the graph, over HTTP, carried by a process that is there anyway: Dagster's code server. No daemon of our own.

    CHMV_METRICS_PORT   where to listen; nothing is opened without it (0 takes a free port)
    CHMV_METRICS_HOST   127.0.0.1 unless said otherwise

Every run and every step imports the location too, and webserver and daemon have a code server each. So: only a code server listens, and of several
the first one; the others wait for the port, so that one takes over when a reload ends the first. Loading never fails and never waits because
of it: a thread does all this, and says in the log what it cannot do. Nothing heavy is imported before a code server listens.
"""

from __future__ import annotations

import errno
import logging
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from chmv_assets.core.catalog import Catalog
from chmv_assets.core.errors import EngineError
from chmv_assets.core.settings import Settings

if TYPE_CHECKING:
    from http.server import ThreadingHTTPServer

    from prometheus_client.core import Metric

    from chmv_assets.core.metrics import Family
    from resources.graph_endpoint import GraphPage
    from resources.metrics import MetricsCollector

PORT_VARIABLE, HOST_VARIABLE = "CHMV_METRICS_PORT", "CHMV_METRICS_HOST"
LOOPBACK = "127.0.0.1"
LOGGER = "dagster.chmv.metrics"  # below Dagster's own: a code server shows its lines from INFO on
PATH = "/metrics"
_RETRY_SECONDS = 5.0
_CLIENT_SECONDS = 15  # for a client that connects and says nothing


def is_code_server(argv: Sequence[str], *, is_child: bool) -> bool:
    """Whether this process serves the location to Dagster. Its children, the runs, have the same arguments.

    >>> is_code_server(["dagster", "api", "grpc", "--port", "4000"], is_child=False), is_code_server(["dagster", "api", "grpc"], is_child=True)
    (True, False)
    >>> is_code_server(["dagster", "api", "execute_run", "{}"], is_child=False)
    False
    """
    return not is_child and list(argv[1:3]) == ["api", "grpc"]


def carry_metrics(
    catalog: Catalog, settings: Settings, environ: Mapping[str, str], argv: Sequence[str] | None = None
) -> threading.Thread | None:
    """Serve metrics from this process if it is a code server and the environment asks for it; else do nothing."""
    said = environ.get(PORT_VARIABLE, "").strip()
    if not said or not is_code_server(argv or sys.argv, is_child=multiprocessing.parent_process() is not None):
        return None
    host = environ.get(HOST_VARIABLE, "").strip() or LOOPBACK
    log = logging.getLogger(LOGGER)
    try:
        port = read_port(said)
    except EngineError as error:
        log.error("%s", error)
        return None

    def run() -> None:
        try:
            _serve_when_free(catalog, settings, host, port, log)
        except Exception:  # the location goes on without metrics
            log.exception("metrics: the endpoint has ended")

    thread = threading.Thread(target=run, name="chmv-metrics", daemon=True)
    thread.start()
    return thread


def read_port(said: str) -> int:
    """A port number, or an error that says what was found."""
    if not (said.isascii() and said.isdigit() and len(said) <= 5 and int(said) <= 65_535):
        raise EngineError(
            f"environment {PORT_VARIABLE}: found {said[:40]!r} but wanted a port from 0 to 65535. No metrics are served. Correct it and reload."
        )
    return int(said)


def _serve_when_free(catalog: Catalog, settings: Settings, host: str, port: int, log: logging.Logger) -> None:
    from resources.graph_endpoint import GraphPage
    from resources.metrics import MetricsCollector

    collector, page = MetricsCollector(catalog, settings), GraphPage(catalog, settings)
    told = False
    while True:
        try:
            server = open_endpoint(collector, host, port, page)
            break
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                log.error("metrics: cannot listen on %s port %s (%s). No metrics are served here.", host, port, error)
                return
            if not told:
                log.info("metrics: %s port %s is taken, by another code server of this location as a rule; waiting for it", host, port)  # fmt: skip
                told = True
            time.sleep(_RETRY_SECONDS)
    log.info("metrics: http://%s:%s%s", host, server.server_address[1], PATH)
    server.serve_forever()


def open_endpoint(
    collector: MetricsCollector, host: str = LOOPBACK, port: int = 0, page: GraphPage | None = None
) -> ThreadingHTTPServer:
    """Bind the port; `serve_forever` answers with metrics and, where one is given, the page of the graph. OSError if it cannot be bound."""
    import socket
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    from prometheus_client.exposition import choose_encoder

    from resources.graph_endpoint import PATH as GRAPH_PATH

    class Handler(BaseHTTPRequestHandler):
        timeout = _CLIENT_SECONDS
        server_version, sys_version = "chmv", ""

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            if path in (PATH, "/"):
                encode, content_type = choose_encoder(self.headers.get("Accept", ""))
                self._answer(encode(exposition(collector.collect)), content_type)
            elif path == GRAPH_PATH and page is not None:
                self._answer(page.render(), "text/html; charset=utf-8")
            else:
                self.send_error(
                    404, f"metrics are at {PATH}" + (f", the graph at {GRAPH_PATH}" if page is not None else "")
                )

        def _answer(self, body: bytes, content_type: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Scrapes are no news."""

    class Endpoint(ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

    return Endpoint((host, port), Handler)


def exposition(collect: Callable[[], Sequence[Family]]) -> Any:
    """A registry of prometheus_client that asks `collect` at every scrape."""
    from prometheus_client.registry import Collector, CollectorRegistry

    class Ours(Collector):
        def collect(self) -> Iterator[Metric]:
            return (as_metric(one) for one in collect())

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Ours())
    return registry


def as_metric(found: Family) -> Metric:
    """A family of ours as one of prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    from chmv_assets.core.metrics import BUCKETS

    spec = found.spec
    if spec.kind == "histogram":
        made = HistogramMetricFamily(spec.name, spec.about, labels=spec.labels)
        for one in found.spreads:
            steps = [
                (f"{edge:g}" if edge % 1 else f"{edge:.1f}", count)
                for edge, count in zip(BUCKETS, one.counts, strict=True)
            ]
            made.add_metric(one.labels, [*steps, ("+Inf", one.count)], one.total)
        return made
    make = CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily
    plain = make(spec.name, spec.about, labels=spec.labels)
    for sample in found.samples:
        plain.add_metric(sample.labels, sample.value)
    return plain


def render(collector: MetricsCollector) -> str:
    """The text of one scrape."""
    from prometheus_client.exposition import generate_latest

    return generate_latest(exposition(collector.collect)).decode()
