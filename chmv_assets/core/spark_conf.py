"""What the environment says about Spark, and the Spark configuration that follows from it.

Pure: values in, a configuration and all defects out. Starting a session, finding Java and the class-data archive live in
`resources`. Invariants: whatever the user sets wins over our defaults; values never appear in a message, only keys,
because they may be secrets.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.model import Finding

MASTER_VARIABLE = "CHMV_SPARK_MASTER"
REMOTE_VARIABLE = "CHMV_SPARK_REMOTE"
CONF_VARIABLE = "CHMV_SPARK_CONF"
DEFAULT_MASTER = "local[*]"
LOOPBACK = "127.0.0.1"

# A short-lived driver spends its time on loading and compiling classes: stop at the first compiler, take the small collector.
JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Where = Literal["local", "cluster", "remote"]

_LOCAL = re.compile(r"local(\[(\*|[1-9]\d*)(\s*,\s*[1-9]\d*)?\])?\Z")
_CLUSTER = re.compile(r"(yarn|local-cluster\[\d+\s*,\s*\d+\s*,\s*\d+\]|k8s://\S+|spark://\S+:\d+(,\S+:\d+)*)\Z")
_LOOPBACK_MASTER = re.compile(r"spark://(127\.0\.0\.1|localhost|\[::1\]):\d+\Z")
_REMOTE = re.compile(r"sc://[^\s/;]+(/(;\S*)?)?\Z")
_KEY = re.compile(r"spark\.[A-Za-z0-9_./-]*[A-Za-z0-9_]\Z")
_PAIR_END = re.compile(r"(?<!\\);")
_SECRET_KEY = re.compile(r"(?i)secret|passw(or)?d|token|access[._]?key|account[._]?key|credential")
_SECRET_VALUE = re.compile(r"://[^\s/@]*:[^\s/@]+@")
_COLLECTOR = re.compile(r"-XX:\+Use\w+GC\b")
_OWN_VARIABLE = {"spark.master": MASTER_VARIABLE, "spark.remote": REMOTE_VARIABLE}
_MASTERS = ("local[*]", "local[4]", "spark://host:7077", "yarn", "k8s://https://host:443")


class SparkDefects(ChmvError):
    """The settings for Spark cannot be used; all their defects at once."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        lines = "\n".join(f"  {finding}" for finding in self.findings)
        super().__init__(f"{len(self.findings)} defect(s) in the settings for Spark:\n{lines}\nSee docs/spark.md.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkOptions:
    """Where Spark runs and what the user wants of it."""

    master: str = DEFAULT_MASTER
    remote: str = ""  # the address of a Spark Connect server; then `master` means nothing
    extra: tuple[tuple[str, str], ...] = ()

    @property
    def where(self) -> Where:
        """In this process, on a cluster, or behind Spark Connect."""
        if self.remote:
            return "remote"
        return "local" if _LOCAL.match(self.master) else "cluster"

    @property
    def loopback(self) -> bool:
        """Whether nothing outside of this machine has to reach the driver."""
        return self.where == "local" or bool(_LOOPBACK_MASTER.match(self.master))


def parse_options(variables: Mapping[str, str]) -> tuple[SparkOptions, tuple[Finding, ...]]:
    """Read CHMV_SPARK_MASTER, CHMV_SPARK_REMOTE and CHMV_SPARK_CONF; every defect is reported.

    >>> parse_options({"CHMV_SPARK_MASTER": "local[2]", "CHMV_SPARK_CONF": "spark.driver.memory=2g"})[0].extra
    (('spark.driver.memory', '2g'),)
    """
    master = variables.get(MASTER_VARIABLE, "").strip()
    remote = variables.get(REMOTE_VARIABLE, "").strip()
    extra, findings = parse_conf(variables.get(CONF_VARIABLE, ""))
    findings += _place_defects(master, remote)
    return SparkOptions(master=master or DEFAULT_MASTER, remote=remote, extra=extra), findings


def parse_conf(text: str) -> tuple[tuple[tuple[str, str], ...], tuple[Finding, ...]]:
    r"""Read `key=value;key=value`; a semicolon inside of a value is written `\;`.

    >>> parse_conf(r"spark.a=1; spark.b=x\;y")[0]
    (('spark.a', '1'), ('spark.b', 'x;y'))
    """
    pairs: dict[str, str] = {}
    findings: list[Finding] = []
    for position, part in enumerate((part.strip() for part in _PAIR_END.split(text)), start=1):
        if not part:
            continue
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if finding := _pair_defect(position, key, bool(equals), pairs):
            findings.append(finding)
        else:
            pairs[key] = value.replace("\\;", ";")
    return tuple(pairs.items()), tuple(findings)


def build_conf(options: SparkOptions, *, java_options: Sequence[str] = ()) -> dict[str, str]:
    """The whole configuration of a session; `java_options` are for the driver's JVM, where we start one."""
    conf = {"spark.sql.session.timeZone": "UTC"}
    if options.where != "remote":
        conf |= {
            "spark.master": options.master,
            "spark.app.name": "chmv",
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
        }
        if options.loopback:
            conf |= {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
        if java_options:
            # Spark puts these before spark.driver.extraJavaOptions, so that what the user says there wins.
            conf["spark.driver.defaultJavaOptions"] = " ".join(_quoted(option) for option in java_options)
    return conf | dict(options.extra)


def without_secrets(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that a process list may show. Keys as Spark itself hides them (`spark.redaction.regex`), and addresses with a password.

    >>> without_secrets({"spark.master": "local", "spark.hadoop.fs.s3a.secret.key": "x", "spark.jars.repositories": "https://u:p@h"})
    {'spark.master': 'local'}
    """
    return {key: value for key, value in conf.items() if not (_SECRET_KEY.search(key) or _SECRET_VALUE.search(value))}


def choose_flags(options: SparkOptions) -> tuple[str, ...]:
    """Our JVM flags without those that the JVM would refuse beside the user's own (two collectors).

    >>> choose_flags(SparkOptions(extra=(("spark.driver.extraJavaOptions", "-XX:+UseG1GC"),)))
    ('-XX:TieredStopAtLevel=1',)
    """
    users = dict(options.extra).get("spark.driver.extraJavaOptions", "")
    return tuple(flag for flag in JVM_FLAGS if not (_COLLECTOR.match(flag) and _COLLECTOR.search(users)))


def _place_defects(master: str, remote: str) -> tuple[Finding, ...]:
    findings = []
    if master and remote:
        findings.append(
            _defect(
                "spark-place",
                f"{MASTER_VARIABLE}: found it together with {REMOTE_VARIABLE} but wanted one of them. "
                "A session lives in one place. Unset one.",
            )
        )
    if master and not (_LOCAL.match(master) or _CLUSTER.match(master)):
        close = difflib.get_close_matches(master, _MASTERS, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]}?" if close else f"Take {REMOTE_VARIABLE} for Spark Connect."
        findings.append(
            _defect(
                "spark-master", f"{MASTER_VARIABLE}: found {master!r} but wanted one of {', '.join(_MASTERS)}. {hint}"
            )
        )
    if remote and not _REMOTE.match(remote):
        findings.append(
            _defect(
                "spark-remote",
                f"{REMOTE_VARIABLE}: found no Spark Connect address but wanted sc://host:15002, "
                f"with parameters as sc://host:15002/;name=value. Take {MASTER_VARIABLE} for a cluster.",
            )
        )
    return tuple(findings)


def _pair_defect(position: int, key: str, has_value: bool, seen: Mapping[str, str]) -> Finding | None:
    if not has_value:
        text = f"entry {position} has no `=` but wanted key=value. Write a semicolon inside of a value as \\;."
        return _defect("spark-conf", f"{CONF_VARIABLE}: {text}")
    if own := _OWN_VARIABLE.get(key):
        return _defect("spark-conf", f"{CONF_VARIABLE}: found {key} but wanted it in {own}. It decides much else.")
    if not _KEY.match(key):
        return _defect("spark-conf", f"{CONF_VARIABLE}: found key {key!r} but wanted one that begins with `spark.`.")
    if key in seen:
        return _defect("spark-conf", f"{CONF_VARIABLE}: found {key} twice but wanted it once. Remove one.")
    return None


def _defect(code: str, message: str) -> Finding:
    return Finding(code=code, severity="error", message=message)


def _quoted(option: str) -> str:
    """One option in Spark's own notation for lists of options (launcher/CommandBuilderUtils)."""
    if not re.search(r"[\s\"'\\]", option):
        return option
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'
