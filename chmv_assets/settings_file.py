"""Reading chmv.yaml: the one place that knows the settings are YAML.

Gives the plain document and the line of every key, so that each defect names its line; duplicate keys, which YAML
parsers swallow, are defects too. What the keys mean lives in `core.settings`. A missing file means: all defaults.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from chmv_assets.core.model import Finding, Place
from chmv_assets.core.settings import SETTINGS_FILE, KeyPath, Settings, parse_settings


def read_settings(ddl_dir: Path) -> tuple[Settings, tuple[Finding, ...]]:
    """Read the settings beside the DDL, with all their defects."""
    file = ddl_dir / SETTINGS_FILE
    if not file.is_file():
        return Settings(), _misnamed(ddl_dir)
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        return Settings(), (_defect("settings-yaml", 1, f"{error.reason} at byte {error.start}", "UTF-8 text"),)
    return parse_settings_text(text)


def parse_settings_text(text: str) -> tuple[Settings, tuple[Finding, ...]]:
    """Read the text of a settings file."""
    reader = _Yaml()
    try:
        raw = reader.read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        found = str(getattr(error, "problem", None) or "text that YAML cannot read")
        return Settings(), (_defect("settings-yaml", mark.line + 1 if mark else 1, found, "valid YAML"),)
    settings, findings = parse_settings(raw, reader.lines)
    every = (*reader.findings, *findings)
    return settings, tuple(sorted(every, key=lambda finding: finding.place.line if finding.place else 0))


def _misnamed(ddl_dir: Path) -> tuple[Finding, ...]:
    if not (ddl_dir / "chmv.yml").is_file():
        return ()
    return (_defect("settings-file-name", 1, "chmv.yml", f"{SETTINGS_FILE}. It would be ignored. Rename it"),)


def _defect(code: str, line: int, found: str, wanted: str) -> Finding:
    message = f"settings {SETTINGS_FILE}: found {found} but wanted {wanted}."
    return Finding(code=code, severity="error", message=message, place=Place(SETTINGS_FILE, line))


class _Yaml:
    """Builds plain values from YAML nodes and remembers where each key stood."""

    def __init__(self) -> None:
        self.lines: dict[KeyPath, int] = {}
        self.findings: list[Finding] = []

    def read(self, text: str) -> Any:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            return None if node is None else self._value(loader, node, (), ())
        finally:
            loader.dispose()

    def _value(self, loader: yaml.SafeLoader, node: yaml.Node, path: KeyPath, parents: tuple[yaml.Node, ...]) -> Any:
        if node in parents:
            raise yaml.MarkedYAMLError(problem="an alias to its own parent", problem_mark=node.start_mark)
        inside = (*parents, node)
        if isinstance(node, yaml.SequenceNode):
            return [self._value(loader, item, path, inside) for item in node.value]
        if not isinstance(node, yaml.MappingNode):
            return loader.construct_object(node)
        self._find_duplicates(node, path)
        loader.flatten_mapping(node)  # resolves `<<`
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            key_path = (*path, key)
            self.lines[key_path] = key_node.start_mark.line + 1
            found[key] = self._value(loader, value_node, key_path, inside)
        return found

    def _find_duplicates(self, node: yaml.MappingNode, path: KeyPath) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            key, line = self._key(key_node), key_node.start_mark.line + 1
            if key in seen:
                name = ".".join((*path, key))
                wanted = f"one. YAML would keep only the last (the first is on line {seen[key]}). Merge the two"
                self.findings.append(_defect("settings-duplicate-key", line, f"{name} twice", wanted))
            seen.setdefault(key, line)

    @staticmethod
    def _key(node: yaml.Node) -> str:
        """Keys are taken as written: `2026-07-01` and `on` are names here, not a date and a boolean."""
        if isinstance(node, yaml.ScalarNode):
            return str(node.value)
        raise yaml.MarkedYAMLError(problem="a key that is not a text", problem_mark=node.start_mark)
