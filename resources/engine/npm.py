"""The two npm commands that the installation needs.

npm reads its own configuration (registry, proxy, certificates), so none of it is repeated here. Each way in which npm
fails becomes an EngineError that says what to do.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from chmv_assets.core.errors import EngineError
from resources.engine.model import URL_VARIABLE
from resources.engine.packages import Package
from resources.engine.report import InstallStep, Report
from resources.toolchain import CACHE_VARIABLE, find_npm

_VIEW_TIMEOUT_SECONDS = 120.0
_PACK_TIMEOUT_SECONDS = 1800.0

# Text in npm's error output → what it means and what to do next; the first that matches wins.
_CAUSES = (
    (
        ("E404", "ETARGET"),
        "npm's registry has no such package",
        "Check npm's registry setting (`npm config get registry`).",
    ),
    (("ENOSPC", "EDQUOT"), "the disk is full", f"Make room, or name a folder on another disk in {CACHE_VARIABLE}."),
    (("EINTEGRITY", "Z_BUF_ERROR", "TAR_BAD_ARCHIVE"), "the download was broken", "Run `chmv engine install` again."),
    (("E401", "E403"), "npm's registry refused access", "Log in with `npm login`, or check npm's registry setting."),
    (
        ("ENOTFOUND", "EAI_AGAIN", "ECONN", "ETIMEDOUT", "ENETUNREACH", "ERR_SOCKET", "CERT_", "network"),
        "npm's registry cannot be reached",
        f"Check the network and npm's proxy settings, or set {URL_VARIABLE} to a ClickHouse server.",
    ),
)


def read_integrity(package: Package, folder: Path) -> str:
    """The integrity text that npm reports for the package."""
    answer = _run(package, ["view", package.spec, "dist.integrity", "--json"], folder, _VIEW_TIMEOUT_SECONDS)
    try:
        value = json.loads(answer)
    except ValueError:
        value = None
    if not isinstance(value, str) or "sha512-" not in value:
        raise EngineError(
            f"package {package.spec}: found no sha512 integrity in npm's answer but wanted one. "
            f"Without it the download cannot be checked. Check npm's registry setting."
        )
    return value


def pack(package: Package, folder: Path, report: Report) -> Path:
    """Download the package's tarball into the folder."""
    arguments = ["pack", package.spec, "--json", "--ignore-scripts", f"--pack-destination={folder}"]
    started = time.monotonic()

    def waiting() -> None:
        report(InstallStep(text=f"downloading {package.spec} ({time.monotonic() - started:.0f} s)"))

    _run(package, arguments, folder, _PACK_TIMEOUT_SECONDS, waiting)
    tarballs = sorted(folder.glob("*.tgz"))
    if len(tarballs) != 1:
        raise EngineError(
            f"package {package.spec}: found {len(tarballs)} tarballs after `npm pack` but wanted one. "
            f"The download did not complete. Run `chmv engine install` again."
        )
    return tarballs[0]


def explain_failure(package: Package, output: str) -> EngineError:
    """The error for what npm wrote when it failed."""
    lines = [line.strip() for line in output.splitlines() if "error" in line.lower() and "complete log" not in line]
    said = "; ".join(lines[:2]) or output.strip()[-300:] or "no output"
    for marks, cause, remedy in _CAUSES:
        if any(mark in output for mark in marks):
            return EngineError(f"package {package.spec}: found that {cause} but wanted to fetch it ({said}). {remedy}")
    return EngineError(
        f"package {package.spec}: found npm failing but wanted to fetch it ({said}). "
        f"Run `npm view {package.spec}` to see why, then `chmv engine install` again."
    )


def _run(
    package: Package,
    arguments: list[str],
    folder: Path,
    timeout_seconds: float,
    waiting: Callable[[], None] = lambda: None,
) -> str:
    """Run npm in the folder, away from any project's settings, and return its standard output."""
    command = [*find_npm(), *arguments]
    give_up = time.monotonic() + timeout_seconds
    with (folder / "npm.out").open("w+b") as out, (folder / "npm.err").open("w+b") as err:
        with subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err) as process:
            while not _has_ended(process):
                if time.monotonic() > give_up:
                    process.kill()
                    raise explain_failure(package, f"ETIMEDOUT: no end after {timeout_seconds:.0f} s")
                waiting()
        out.seek(0)
        err.seek(0)
        answer = out.read().decode("utf-8", "replace")
        if process.returncode:
            raise explain_failure(package, err.read().decode("utf-8", "replace") or answer)
    return answer


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a moment for the end of the process."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return False
    return True
