"""Which keys of one mapping go together, in JSON Schema; a key that is null counts as not given, as for `check`."""

from collections.abc import Callable, Mapping

from pydantic.json_schema import JsonSchemaValue

from shoal.pipeline.check import foreign_keys
from shoal.pipeline.names import PATTERN
from shoal.pipeline.script import Action
from shoal.pipeline.step_nodes import NEEDS

Rule = Callable[[JsonSchemaValue], JsonSchemaValue | None]
"""What is asked of a mapping besides its keys; `None` where it has no such keys."""


def _given(key: str) -> JsonSchemaValue:
    return {"required": [key], "properties": {key: {"not": {"type": "null"}}}}


def some_of(*keys: str) -> Rule:
    """Ask for at least one of *keys*, as far as the mapping has them."""

    def rule(made: JsonSchemaValue) -> JsonSchemaValue | None:
        return {"anyOf": [_given(key) for key in keys if key in made["properties"]]}

    return rule


def not_both(first: str, second: str) -> Rule:
    """Refuse two keys that exclude each other."""

    def rule(made: JsonSchemaValue) -> JsonSchemaValue | None:
        is_there = {first, second} <= set(made["properties"])
        return {"not": {"allOf": [_given(first), _given(second)]}} if is_there else None

    return rule


def with_adapter(adapter: str, *needed: str) -> Rule:
    """Ask an agent of *adapter* for one of the keys *needed*, and refuse what goes with other adapters."""

    def rule(made: JsonSchemaValue) -> JsonSchemaValue | None:
        nothing = {key: {"type": "null"} for key in foreign_keys(adapter) if key in made["properties"]}
        then: JsonSchemaValue = {"properties": nothing}
        if needed:
            then["anyOf"] = [_given(key) for key in needed]
        return {"if": {"required": ["adapter"], "properties": {"adapter": {"const": adapter}}}, "then": then}

    return rule


def named(*keys: str) -> Rule:
    """Hold the texts under *keys* to the rule for names."""
    return lambda made: {"properties": {key: {"pattern": f"^{PATTERN}$"} for key in keys}}


def labels(*keys: str) -> Rule:
    """Hold the keys of the mappings under *keys* to the rule for names."""
    return lambda made: {"properties": {key: {"propertyNames": {"pattern": f"^{PATTERN}$"}} for key in keys}}


def filled(*keys: str) -> Rule:
    """Refuse empty lists under *keys*."""
    return lambda made: {"properties": {key: {"minItems": 1} for key in keys}}


def no_matrix_of_workers(made: JsonSchemaValue) -> JsonSchemaValue:
    """Refuse a matrix and several workers on the same step."""
    matrix = {"required": ["strategy"], "properties": {"strategy": {"type": "object", "required": ["matrix"]}}}
    return {"not": {"allOf": [matrix, _given("concurrency")]}}


def one_verb(made: JsonSchemaValue) -> JsonSchemaValue:
    """Ask an action for exactly one verb."""
    return {"oneOf": [_given(verb) for verb in Action.verbs]}


RULES: Mapping[str, tuple[Rule, ...]] = {
    "FileShape": (not_both("steps", "pipelines"), filled("steps", "pipelines"), labels("agents", "personas")),
    "PipelineShape": (named("name"), filled("steps")),
    "PersonaShape": (not_both("system_prompt", "system_prompt_file"),),
    "AgentShape": (
        with_adapter("command", "command"),
        with_adapter("scripted", "script", "script_file"),
        with_adapter("python", "model"),
        with_adapter("acp", "command"),
        not_both("script", "script_file"),
    ),
    "StepShape": (
        some_of("name", "id"),
        not_both("name", "id"),
        named("name", "id"),
        some_of("prompt", "exec", "command", "gate", "pipeline", "loop"),
        not_both("prompt", "exec"),
        *(not_both(first, second) for first, second in zip(NEEDS, NEEDS[1:] + NEEDS[:1], strict=True)),
        no_matrix_of_workers,
    ),
    "Action": (one_verb,),
}
