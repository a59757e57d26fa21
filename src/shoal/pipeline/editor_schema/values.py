"""The JSON Schema of values whose validators take more than their type says."""

from collections.abc import Callable, Mapping

from pydantic.json_schema import JsonSchemaValue

from shoal.model.agent import TOOLS
from shoal.model.limits import DISK, RANGES, SPELLINGS, ResourceLimits
from shoal.model.retry import LONGEST_WAIT, MOST_ATTEMPTS, POLICIES
from shoal.model.status import FAILURE_RULES, MOST_WANTED
from shoal.pipeline.keys.duration import LONGEST
from shoal.pipeline.names import OWN, list_plugin_names

Made = Callable[[JsonSchemaValue], JsonSchemaValue]
"""Makes a schema from the one that pydantic made of the validator's type."""

VARIABLE = "^(?!SHOAL_)[A-Za-z_][A-Za-z0-9_]*$"
LIMIT_MEANINGS = {
    "memory_mb": "Memory in MB (2**20 bytes); an agent that exceeds it is stopped, and its status names the limit.",
    "cpu_percent": "Share of one core, so 200 is two cores; an agent is throttled to it, never stopped.",
    "time_seconds": "Wall-clock time; then the agent is stopped and its work kept.",
    "disk_mb": "What it may add to its workspace and home, in MB.",
    "pids": "Processes and threads at a time.",
    "disk": "How `disk_mb` is enforced: `polled` each second, or `exact` by a file system of that size for each agent.",
}
ENV_VALUE: JsonSchemaValue = {
    "anyOf": [
        {"type": ["string", "number", "boolean"]},
        {
            "type": "object",
            "properties": {
                "from": {
                    "type": "string",
                    "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
                    "description": "The host's variable: its value is masked everywhere.",
                }
            },
            "required": ["from"],
            "additionalProperties": False,
        },
    ]
}
TIME: JsonSchemaValue = {
    "anyOf": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": LONGEST},
        {"type": "string", "pattern": "^( *[0-9][0-9 ]*[hms])+ *$"},
    ],
    "examples": [90, "90s", "10m", "1h30m"],
}
ON_FAILURE: JsonSchemaValue = {
    "anyOf": [
        {"enum": list(FAILURE_RULES)},
        {
            "type": "object",
            "properties": {"quorum": {"type": "integer", "minimum": 1, "maximum": MOST_WANTED}},
            "required": ["quorum"],
            "additionalProperties": False,
        },
    ]
}
CALL: JsonSchemaValue = {
    "type": "object",
    "properties": {
        tool: {"type": "object", "propertyNames": {"enum": list(arguments)}} for tool, arguments in TOOLS.items()
    },
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}
REPLY: JsonSchemaValue = {"anyOf": [{"type": "string"}, CALL, {"type": "array", "items": CALL, "minItems": 1}]}


WORD: JsonSchemaValue = {"type": ["string", "boolean"]}  # `true` and `false` are programs, too
COMMAND: JsonSchemaValue = {"anyOf": [{**WORD, "minLength": 1}, {"type": "array", "items": WORD, "minItems": 1}]}


def _limit(name: str) -> JsonSchemaValue:
    kind = "integer" if RANGES[name].is_whole else "number"
    return {"type": [kind, "null"], "minimum": RANGES[name].lowest, "maximum": RANGES[name].highest}


def _limits(title: str, says: str, ways: tuple[str, ...]) -> JsonSchemaValue:
    usual = ResourceLimits()
    own = {
        name: {**_limit(name), "default": getattr(usual, name), "description": LIMIT_MEANINGS[name]} for name in RANGES
    }
    others = {other: {**_limit(name), "description": f"Alias of `{name}`."} for other, name in SPELLINGS.items()}
    disk = {"type": "string", "enum": list(ways), "default": "polled", "description": LIMIT_MEANINGS["disk"]}
    return {
        "title": title,
        "description": says,
        "type": "object",
        "properties": {**own, "disk": disk, **others},
        "additionalProperties": False,
    }


LIMITS = _limits(
    "Limits",
    "What one agent may spend; null is no bound. Where no limits are named at all, CPU is a fair share and no quota.",
    DISK,
)
FLEET_LIMITS = _limits("FleetLimits", "Limits of all agents of a run together.", DISK[:1])


def _seconds(meaning: str, default: float) -> JsonSchemaValue:
    return {"type": "number", "minimum": 0, "maximum": LONGEST_WAIT, "default": default, "description": meaning}


RETRY: JsonSchemaValue = {
    "title": "Retry",
    "description": "How often to retry an agent that fails: a number of retries, or a mapping.",
    "anyOf": [
        {"type": "integer", "minimum": 0, "maximum": MOST_ATTEMPTS - 1},
        {
            "type": "object",
            "properties": {
                "policy": {
                    "enum": list(POLICIES),
                    "default": "none",
                    "description": "Preset values; other keys override them.",
                },
                "max_attempts": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MOST_ATTEMPTS,
                    "default": 1,
                    "description": "Attempts in total, including the first.",
                },
                "wait_seconds": _seconds("Wait before the second attempt; it doubles each time.", 1),
                "longest_seconds": _seconds("Longest wait between attempts.", 60),
            },
            "additionalProperties": False,
        },
    ],
}


INPUT: JsonSchemaValue = {
    "anyOf": [
        {"type": "string"},
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
    ]
}


def _or_text(inner: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [{"type": "string"}, inner]}


def _env(inner: JsonSchemaValue) -> JsonSchemaValue:
    return {**inner, "propertyNames": {"pattern": VARIABLE}}


def _command(inner: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [{"type": "string", "minLength": 1}, {**inner, "minItems": 1}]}


TAKES: Mapping[str, Made] = {
    "value_types._limits": lambda inner: LIMITS,
    "value_types._fleet": lambda inner: FLEET_LIMITS,
    "value_types._retry": lambda inner: RETRY,
    "value_types._failure_rule": lambda inner: ON_FAILURE,
    "value_types._input": lambda inner: INPUT,
    "value_types.read_variable": lambda inner: ENV_VALUE,
    "value_types._check_variable_names": _env,
    "value_types._names": _or_text,
    "fields._seconds": lambda inner: TIME,
    "fields._argv": lambda inner: COMMAND,
    "script._shell": _command,
    "python_agent._reply": lambda inner: REPLY,
    "value_types._adapter": lambda inner: {**inner, "enum": [*OWN, *list_plugin_names()]},
}
"""By the validator's module and name."""

NAMED: Mapping[str, JsonSchemaValue] = {"Limits": LIMITS, "FleetLimits": FLEET_LIMITS, "Retry": RETRY}
"""Those that are mappings with keys of their own, by their titles."""
