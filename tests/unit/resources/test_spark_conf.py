"""Spark's options and configuration, the shipped package and the archive's bookkeeping: no Spark, no Java."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from chmv_assets.core.errors import ChmvError
from chmv_assets.core.spark_conf import (
    JVM_FLAGS,
    SparkDefects,
    SparkOptions,
    build_conf,
    choose_flags,
    parse_conf,
    parse_options,
)
from resources.spark_archive import KEPT, ClassArchive, find_archive, publish_archive
from resources.spark_package import build_package, write_package
from resources.spark_session import options_from_environment


def test_without_variables_spark_runs_in_this_process() -> None:
    options, findings = parse_options({})
    assert (options, findings) == (SparkOptions(master="local[*]"), ())
    assert build_conf(options) == {
        "spark.master": "local[*]",
        "spark.app.name": "chmv",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }


@pytest.mark.parametrize(
    ("master", "where", "loopback"),
    [
        ("local", "local", True),
        ("local[4]", "local", True),
        ("local[*,2]", "local", True),
        ("local-cluster[2,1,512]", "cluster", False),
        ("spark://127.0.0.1:7077", "cluster", True),
        ("spark://a:7077,b:7077", "cluster", False),
        ("yarn", "cluster", False),
        ("k8s://https://api:443", "cluster", False),
    ],
)
def test_a_master_decides_place_and_interface(master: str, where: str, loopback: bool) -> None:
    options, findings = parse_options({"CHMV_SPARK_MASTER": master})
    assert (options.where, options.loopback, findings) == (where, loopback, ())
    assert ("spark.driver.bindAddress" in build_conf(options)) is loopback


def test_spark_connect_gets_only_what_a_client_may_set() -> None:
    options, findings = parse_options(
        {"CHMV_SPARK_REMOTE": "sc://host:15002/;token=x", "CHMV_SPARK_CONF": "spark.sql.a=1"}
    )
    assert (options.where, findings) == ("remote", ())
    conf = build_conf(options, java_options=JVM_FLAGS)
    assert conf == {"spark.sql.session.timeZone": "UTC", "spark.sql.a": "1"}


def test_what_the_user_sets_wins() -> None:
    options, _ = parse_options({"CHMV_SPARK_CONF": "spark.ui.enabled=true; spark.sql.session.timeZone = Asia/Tokyo ;"})
    conf = build_conf(options)
    assert (conf["spark.ui.enabled"], conf["spark.sql.session.timeZone"]) == ("true", "Asia/Tokyo")


def test_values_keep_equal_signs_and_escaped_semicolons() -> None:
    pairs, findings = parse_conf(r"spark.a=x=y;spark.b=1\;2;;spark.c=")
    assert (pairs, findings) == ((("spark.a", "x=y"), ("spark.b", "1;2"), ("spark.c", "")), ())


def test_all_defects_are_told_at_once_and_no_value_leaks() -> None:
    environment = {
        "CHMV_SPARK_MASTER": "lokal[*]",
        "CHMV_SPARK_REMOTE": "http://host/;token=hunter2",
        "CHMV_SPARK_CONF": "hunter2;fs.key=hunter2;spark.a=1;spark.a=hunter2;spark.master=yarn",
    }
    with pytest.raises(SparkDefects) as caught:
        options_from_environment(environment)
    assert isinstance(caught.value, ChmvError)
    codes = [finding.code for finding in caught.value.findings]
    assert codes == ["spark-conf"] * 4 + ["spark-place", "spark-master", "spark-remote"]
    text = str(caught.value)
    assert "hunter2" not in text
    assert "Did you mean local[*]?" in text
    assert "CHMV_SPARK_CONF: found spark.a twice" in text
    assert "wanted it in CHMV_SPARK_MASTER" in text


def test_the_environment_wins_over_the_code() -> None:
    options = options_from_environment({"CHMV_SPARK_CONF": "spark.a=2"}, {"spark.a": "1", "spark.b": "1"})
    assert dict(options.extra) == {"spark.a": "2", "spark.b": "1"}


def test_a_collector_of_the_user_replaces_ours() -> None:
    assert choose_flags(SparkOptions()) == JVM_FLAGS
    users = SparkOptions(extra=(("spark.driver.extraJavaOptions", "-Xss4m -XX:+UseZGC"),))
    assert choose_flags(users) == ("-XX:TieredStopAtLevel=1",)


def test_java_options_with_spaces_are_quoted_for_spark() -> None:
    conf = build_conf(SparkOptions(), java_options=("-Xss4m", '-Da=/my "own" cache'))
    assert conf["spark.driver.defaultJavaOptions"] == '-Xss4m "-Da=/my \\"own\\" cache"'


def test_the_package_is_the_same_bytes_each_time_and_holds_what_executors_import(tmp_path: Path) -> None:
    content = build_package()
    assert content == build_package()
    first, second = write_package(tmp_path / "a"), write_package(tmp_path / "b")
    assert first.name == second.name
    assert first.read_bytes() == content
    names = zipfile.ZipFile(io.BytesIO(content)).namelist()
    assert names == sorted(names)
    assert {"chmv_assets/core/names.py", "spark_jobs/__init__.py"} <= set(names)
    others = [name for name in names if not name.startswith(("chmv_assets/core/", "spark_jobs/"))]
    assert others == ["chmv_assets/__init__.py", "chmv_assets/process_identity.py"]


def test_the_core_can_be_imported_from_the_package(tmp_path: Path) -> None:
    package = write_package(tmp_path)
    found = zipimporter(f"{package}/chmv_assets/core").find_spec("names")
    assert found is not None
    assert found.origin == f"{package}/chmv_assets/core/names.py"


@pytest.fixture
def java(tmp_path: Path) -> Path:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'version \"17\"' >&2\n")
    program.chmod(0o755)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    return program


def test_an_archive_is_recorded_then_used(tmp_path: Path, java: Path) -> None:
    folder, home = tmp_path / "cache", tmp_path / "spark"
    first = find_archive(folder, java, home, JVM_FLAGS, {})
    assert first is not None
    assert first.recording is not None
    assert first.java_options[0] == f"-XX:ArchiveClassesAtExit={first.recording}"
    first.recording.write_bytes(b"classes")
    assert publish_archive(first, 0)
    second = find_archive(folder, java, home, JVM_FLAGS, {})
    assert second is not None
    assert second.usable
    assert f"-XX:SharedArchiveFile={first.published}" in second.java_options
    assert not publish_archive(second, 0), "only a recorded one is published"
    other = find_archive(folder, java, home, ("-XX:+UseZGC",), {})
    assert other is not None
    assert other.published != first.published


def test_another_java_or_another_spark_needs_another_archive(tmp_path: Path, java: Path) -> None:
    def name() -> str:
        archive = find_archive(tmp_path / "cache", java, tmp_path / "spark", JVM_FLAGS, {})
        assert archive is not None
        return archive.published.name

    first = name()
    (tmp_path / "spark" / "jars" / "spark-core_2.13-4.9.9.jar").touch()
    second = name()
    java.write_text("#!/bin/sh\necho 'version \"21\"' >&2\n")
    assert len({first, second, name()}) == 3


def test_a_jvm_that_died_publishes_nothing_and_is_tried_again(tmp_path: Path, java: Path) -> None:
    archive = find_archive(tmp_path / "cache", java, tmp_path / "spark", JVM_FLAGS, {})
    assert archive is not None
    assert archive.recording is not None
    archive.recording.write_bytes(b"half")
    assert not publish_archive(archive, -9)
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_java_that_cannot_record_is_not_asked_again(tmp_path: Path, java: Path) -> None:
    archive = find_archive(tmp_path / "cache", java, tmp_path / "spark", JVM_FLAGS, {})
    assert archive is not None
    assert not publish_archive(archive, 0)
    assert find_archive(tmp_path / "cache", java, tmp_path / "spark", JVM_FLAGS, {}) is None


def test_no_archive_is_never_an_error(tmp_path: Path, java: Path) -> None:
    home = tmp_path / "spark"
    assert find_archive(tmp_path / "cache", java, home, (), {"CHMV_SPARK_ARCHIVE": "off"}) is None
    assert find_archive(tmp_path / "cache", tmp_path / "nowhere", home, (), {}) is None
    assert find_archive(java, java, home, (), {}) is None, "the folder is a file"
    gone = ClassArchive(published=tmp_path / "gone" / "a.jsa", recording=tmp_path / "gone" / "a.new")
    assert not publish_archive(gone, 0)


def test_only_the_archives_used_last_are_kept(tmp_path: Path) -> None:
    for age in range(1, KEPT + 2):
        old = tmp_path / f"spark-{age}.jsa"
        old.touch()
        os.utime(old, (1_000_000 - age, 1_000_000 - age))
    archive = ClassArchive(published=tmp_path / "spark-new.jsa", recording=tmp_path / "a.new")
    (tmp_path / "a.new").touch()
    assert publish_archive(archive, 0)
    kept = {path.name for path in tmp_path.glob("*.jsa")}
    assert kept == {"spark-new.jsa", *(f"spark-{age}.jsa" for age in range(1, KEPT))}
