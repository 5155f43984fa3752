"""One Spark session per process, started on first use and as cheap as it gets.

Invariants: nothing of Spark or Java is touched before `session()`; a session that somebody else started in this process
is used and never stopped by us; the process's environment is as before after a start. What the configuration is made of
lives in `chmv_assets.core.spark_conf`; the Dagster face in `resources.spark`.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from chmv_assets.core.errors import EngineError
from chmv_assets.core.spark_conf import (
    LOOPBACK,
    SparkDefects,
    SparkOptions,
    build_conf,
    choose_flags,
    parse_options,
    without_secrets,
)
from resources.spark_archive import ClassArchive, find_archive, publish_archive
from resources.spark_package import write_package
from resources.toolchain import cache_dir, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECT_PORT = 15002
CONNECT_TIMEOUT_SECONDS = 10.0
ARCHIVE_TIMEOUT_SECONDS = 120.0  # writing an archive takes 5 to 15 s
_log = logging.getLogger(__name__)
_LOG4J = """# Written by chmv: only errors, on stderr.
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def options_from_environment(
    environ: Mapping[str, str] | None = None, defaults: Mapping[str, str] | None = None
) -> SparkOptions:
    """Read CHMV_SPARK_*; `defaults` are entries of the configuration that the environment may override."""
    options, findings = parse_options(os.environ if environ is None else environ)
    if findings:
        raise SparkDefects(findings)
    extra = {**(defaults or {}), **dict(options.extra)}
    return SparkOptions(master=options.master, remote=options.remote, extra=tuple(extra.items()))


class LazySession:
    """A session that is started by the first call of `session` and ended by `stop`, or else at exit."""

    def __init__(self, options: SparkOptions) -> None:
        self.options = options
        self._lock = threading.Lock()
        self._session: SparkSession | None = None
        self._owned = False
        self._archive: ClassArchive | None = None

    def session(self) -> SparkSession:
        """The session; the first call starts it."""
        with self._lock:
            if self._session is None:
                self._session = self._start()
            return self._session

    @property
    def started(self) -> bool:
        """Whether there is a session to stop."""
        return self._session is not None

    def stop(self) -> None:
        """End the session, if we started one. Never raises: the job's own error matters more."""
        with self._lock:
            session, self._session = self._session, None
            if session is None or not self._owned:
                return
            atexit.unregister(self.stop)
            try:
                self._end(session)
            except Exception as error:  # py4j raises a dozen kinds when the JVM is gone
                _log.warning("spark: the session did not end cleanly: %s", error)

    def _start(self) -> SparkSession:
        if (running := _running_session()) is not None:
            self._owned = False
            return running
        begun = time.monotonic()
        try:
            session = self._connect() if self.options.where == "remote" else self._launch()
        except Exception as error:  # pyspark, py4j and grpc have no common base
            raise EngineError(_start_failure(self.options, error)) from error
        self._owned = True
        atexit.register(self.stop)
        _log.info("spark: session %s in %.1f s", self.options.where, time.monotonic() - begun)
        return session

    def _connect(self) -> SparkSession:
        from pyspark.sql import SparkSession

        _check_reachable(self.options.remote)
        builder = SparkSession.builder.remote(self.options.remote)
        for key, value in build_conf(self.options).items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        session.addArtifacts(str(write_package(cache_dir() / "spark")), pyfile=True)
        return session

    def _launch(self) -> SparkSession:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession

        java, folder, flags = find_java(), cache_dir() / "spark", choose_flags(self.options)
        self._archive = None
        if SparkContext._gateway is None:  # else the JVM of an earlier session goes on, with the options that it has
            self._archive = find_archive(folder, java, spark_home(), flags, os.environ)
        java_options = [*flags, *_logging_options(folder), *(self._archive.java_options if self._archive else ())]
        builder = SparkSession.builder
        conf = build_conf(self.options, java_options=java_options)
        for key, value in conf.items():
            builder = builder.config(key, value)
        package = write_package(folder) if self.options.where == "cluster" else None
        with _variables(_launch_variables(self.options, java, flags)):
            if SparkContext._gateway is None and (public := without_secrets(conf)) != conf:
                # pyspark starts its JVM with all settings on the command line, which everybody on the machine can read: the rest is told over its pipe.
                SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(list(public.items())))
            session = builder.getOrCreate()
        if package is not None:
            session.sparkContext.addPyFile(str(package))
        return session

    def _end(self, session: SparkSession) -> None:
        archive, self._archive = self._archive, None
        if archive is None or archive.recording is None:
            session.stop()
            return
        # The archive is written when the JVM ends, so end it here; another session would start another JVM.
        publish_archive(archive, _end_with_jvm(session))


@contextmanager
def open_session(options: SparkOptions | None = None) -> Iterator[SparkSession]:
    """A session for a block of code, for commands and scripts."""
    lazy = LazySession(options or options_from_environment())
    try:
        yield lazy.session()
    finally:
        lazy.stop()


def spark_home() -> Path:
    """The folder with Spark's jars and scripts: SPARK_HOME, else the pip package."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    spec = find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError("pyspark: found none but wanted it to run Spark jobs. Install it with `pip install pyspark`.")
    return Path(next(iter(spec.submodule_search_locations)))


def _running_session() -> SparkSession | None:
    """The session that somebody started in this process, in whichever thread."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        return SparkSession.builder.getOrCreate()
    return SparkSession.getActiveSession()


def _check_reachable(remote: str) -> None:
    """Refuse at once what pyspark would retry for ten minutes without a word."""
    if any(os.environ.get(name) for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        return  # gRPC goes through the proxy; a direct connection proves nothing
    address = urlsplit(remote)
    with socket.create_connection((address.hostname, address.port or CONNECT_PORT), timeout=CONNECT_TIMEOUT_SECONDS):
        pass


def _start_failure(options: SparkOptions, error: Exception) -> str:
    if isinstance(error, EngineError):
        return str(error)
    # The address may hold a token after the slash.
    place = options.remote.partition("/;")[0] if options.where == "remote" else options.master
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return (
        f"spark session on {place}: found `{first_line}` but wanted it to start. What Spark printed stands above. "
        "Check CHMV_SPARK_MASTER, CHMV_SPARK_REMOTE and CHMV_SPARK_CONF (docs/spark.md)."
    )


def _end_with_jvm(session: SparkSession) -> int | None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None
    gateway.proc.stdin.close()  # the JVM ends when its parent's pipe is closed
    try:
        return int(gateway.proc.wait(timeout=ARCHIVE_TIMEOUT_SECONDS))
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
        return None


def _launch_variables(options: SparkOptions, java: Path, flags: tuple[str, ...]) -> dict[str, str]:
    """What Spark's start script and pyspark read from the environment while a session starts."""
    variables = {
        "JAVA_HOME": str(java.parent.parent),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON") or sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # spark-submit first runs a small JVM that puts the real command line together.
        "SPARK_LAUNCHER_OPTS": os.environ.get("SPARK_LAUNCHER_OPTS") or " ".join(flags),
    }
    if options.where == "local":
        variables["PYSPARK_PYTHON"] = sys.executable  # the workers are ours: another Python cannot read our pickles
    if options.loopback:
        variables["SPARK_LOCAL_IP"] = LOOPBACK
    return variables


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _logging_options(folder: Path) -> tuple[str, ...]:
    """Only errors in the log, unless the user keeps a configuration of Spark, which may have its own log4j2 file."""
    if os.environ.get("SPARK_CONF_DIR") or (spark_home() / "conf").is_dir():
        return ()
    target = folder / "log4j2.properties"
    try:
        if not target.exists() or target.read_text(encoding="utf-8") != _LOG4J:
            folder.mkdir(parents=True, exist_ok=True)
            temporary = target.with_suffix(f".{os.getpid()}.tmp")
            temporary.write_text(_LOG4J, encoding="utf-8")
            temporary.replace(target)
    except OSError as error:
        _log.info("spark: its own logging stays, because %s", error)
        return ()
    return (f"-Dlog4j2.configurationFile={target.as_uri()}",)
