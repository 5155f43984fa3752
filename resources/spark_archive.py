"""A class-data archive for the JVM of a Spark driver: classes are mapped from it instead of being read and verified.

The first session on a machine records the archive when its JVM ends, later ones use it. Invariants: an archive belongs to
one Java, one Spark and one set of flags, and is published only after the JVM that wrote it ended well; without an archive,
or with one that the JVM does not like, Spark merely starts slower. Nothing here raises.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ARCHIVE_VARIABLE = "CHMV_SPARK_ARCHIVE"
KEPT = 3  # each has about 160 MB
# Without this the JVM lists on stdout each class that an archive cannot hold.
_QUIET = "-Xlog:disable"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassArchive:
    """What one JVM does about the archive: use it, record it, or neither."""

    published: Path
    recording: Path | None = None
    usable: bool = False

    @property
    def java_options(self) -> tuple[str, ...]:
        """The options that the JVM needs for it."""
        if self.usable:
            return ("-Xshare:auto", f"-XX:SharedArchiveFile={self.published}", _QUIET)
        if self.recording:
            return (f"-XX:ArchiveClassesAtExit={self.recording}", _QUIET)
        return ()


def find_archive(
    folder: Path, java: Path, spark_home: Path, flags: Sequence[str], environ: Mapping[str, str]
) -> ClassArchive | None:
    """The archive for this Java, Spark and flags; None where archives are switched off or cannot be kept."""
    if environ.get(ARCHIVE_VARIABLE, "").strip().lower() in ("off", "0", "false", "no"):
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        published = folder / f"spark-{_key(java, spark_home, flags)}.jsa"
        if published.exists():
            os.utime(published)  # the least recently used ones are removed first
            return ClassArchive(published=published, usable=True)
        if published.with_suffix(".none").exists():
            return None
        return ClassArchive(published=published, recording=published.with_suffix(f".{os.getpid()}.new"))
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("class-data archive: not used, because %s", error)
        return None


def publish_archive(archive: ClassArchive, exit_code: int | None) -> bool:
    """Make a recorded archive visible to later sessions; a JVM that cannot write one is remembered."""
    if archive.recording is None:
        return False
    try:
        if exit_code == 0 and archive.recording.exists():
            archive.recording.replace(archive.published)
            _remove_oldest(archive.published.parent)
            return True
        archive.recording.unlink(missing_ok=True)
        if exit_code == 0:  # it ended well and wrote nothing: this Java has no archive to build upon
            archive.published.with_suffix(".none").touch()
    except OSError as error:
        _log.info("class-data archive: not kept, because %s", error)
    return False


def _key(java: Path, spark_home: Path, flags: Sequence[str]) -> str:
    version = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    jars = sorted(path.name for path in (spark_home / "jars").iterdir())
    text = "\0".join([version, str(java.resolve()), str(spark_home.resolve()), *jars, *flags])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove_oldest(folder: Path) -> None:
    found = sorted(folder.glob("spark-*.jsa"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[KEPT:]:
        path.unlink(missing_ok=True)
