"""docs/yaml.md: every key of a pipeline file, from the schema."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from shoal.pipeline.editor_schema.schema import schema
from shoal.pipeline.editor_schema.values import WORD

INTRODUCTION = """\
# Every key of a pipeline file

Written by `python -m scripts.reference` from what `shoal schema` prints: change the docstrings in `src/shoal/pipeline`, not
this page. [Pipelines](pipelines.md) shows how the keys are used; `shoal init` writes a file to start from, which an
editor with a YAML language server checks and completes as you type.
"""
SECTIONS = {
    "File": "The file",
    "Runtime": "`runtime`",
    "Agent": "An agent",
    "Persona": "A persona",
    "Pipeline": "A pipeline",
    "Step": "A step",
    "Limits": "`limits` and `resource_limits`",
    "FleetLimits": "`fleet_limits`",
    "Permissions": "`permissions`",
    "Setup": "`setup`",
    "Notify": "`notify`",
    "Telemetry": "`telemetry`",
    "Retry": "`retry`",
    "Contract": "`contract`",
    "Artifact": "`output_artifacts`",
    "Injection": "`inject_artifacts`",
    "Select": "`select`",
    "Strategy": "`strategy`",
    "Loop": "`loop`",
    "Gate": "`gate`",
    "Exec": "`exec`",
    "Budget": "`budget` of an agent",
    "Spending": "`budget` of a run, a step or a persona",
    "Action": "An action of a scripted agent",
    "FileText": "A file and its text",
}
HUGE = 10**6
KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
    "array": "list",
}
Schema = Mapping[str, Any]


def page() -> str:
    """Make the whole page."""
    whole = schema()
    defs: dict[str, Schema] = {"File": whole, **whole["$defs"]}
    found = {str(one["title"]): one for one in defs.values()}
    ordered = [*(title for title in SECTIONS if title in found), *(title for title in found if title not in SECTIONS)]
    return "\n".join([INTRODUCTION, *("\n".join(_section(title, found[title], defs)) for title in ordered)])


def _section(title: str, one: Schema, defs: Mapping[str, Schema]) -> Iterator[str]:
    yield f"## {SECTIONS.get(title, title)}\n"
    yield f"{one['description']}\n"
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    mapping = next(piece for piece in (one, *one.get("anyOf", ())) if "properties" in piece)
    for key, value in _own_first(mapping["properties"], defs).items():
        cells = (f"`{key}`", _kind(value, defs), _default(key, value, mapping), _meaning(value))
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


def _own_first(properties: Schema, defs: Mapping[str, Schema]) -> Schema:
    """Put the keys that steps, personas and agents share after a mapping's own."""
    shared = set.intersection(*(set(defs[name]["properties"]) for name in ("StepShape", "PersonaShape", "AgentShape")))
    return dict(sorted(properties.items(), key=lambda item: shared <= set(properties) and item[0] in shared))


def _default(key: str, value: Schema, mapping: Schema) -> str:
    if key in mapping.get("required", ()):
        return "needed"
    default = value.get("default")
    if default is None or default in ([], {}):
        return ""
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meaning(value: Schema) -> str:
    return str(value["description"])


def _kind(value: Schema, defs: Mapping[str, Schema]) -> str:
    """Describe the values of a key; null, which every optional key takes, is not mentioned."""
    if "$ref" in value:
        title = str(defs[value["$ref"].rpartition("/")[2]]["title"])
        return f"[{title}](#{_anchor(SECTIONS.get(title, title))})"
    if value.get("type") == WORD["type"]:  # YAML may read a word of a command as a boolean, which needs no mention
        return "text"
    if "const" in value:
        return f"`{str(value['const']).lower()}`"
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_kind(one, defs) for one in value["anyOf"] if one != {"type": "null"}))
    return _plain(value, defs)


def _plain(value: Schema, defs: Mapping[str, Schema]) -> str:
    types = [value["type"]] if isinstance(value["type"], str) else value["type"]
    words = " or ".join(KINDS[one] for one in types if one != "null" or len(types) == 1)
    if types == ["array"] and "items" in value:
        return f"list of {_kind(value['items'], defs)}"
    if types == ["object"] and isinstance(value.get("additionalProperties"), dict):
        return f"mapping of names to {_kind(value['additionalProperties'], defs)}"
    if types == ["object"] and "properties" in value:
        inside = (f"{key}: {_kind(one, defs)}" for key, one in value["properties"].items())
        return (
            f"`{{{', '.join(value['properties'])}}}`" if value.get("maxProperties") == 1 else f"{{{', '.join(inside)}}}"
        )
    return f"{words}{_range(value)}"


def _range(value: Schema) -> str:
    above, least, most = value.get("exclusiveMinimum"), value.get("minimum"), value.get("maximum", HUGE)
    if above is not None:
        return f" above {above:g}"
    if least is None:
        return ""
    return f" from {least:g}" + (f" to {most:g}" if most < HUGE else "")


def _anchor(heading: str) -> str:
    return re.sub(r"[^a-z0-9_ -]", "", heading.lower()).replace(" ", "-")
