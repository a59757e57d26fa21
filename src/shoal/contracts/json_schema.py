"""Validate JSON against a schema in a child process with a time limit: some documents take forever."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.model.command import Command
from shoal.pipeline.json_schema import compile_schema

PROGRAM = Path(__file__).with_name("json_schema_program.py")
SECONDS = 5
FAULT_BYTES = 2**20
MOST_FAULTS = 5
MOST_BYTES = 8 * MOST_FAULTS * FAULT_BYTES  # an escaped character has at most six bytes
REFERENCES = ('"$ref"', '"$dynamicRef"', '"$recursiveRef"')


@dataclass(frozen=True, slots=True)
class SchemaMismatch:
    """The faults found in time."""

    faults: tuple["SchemaFault", ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaFault:
    """One fault: where, and what."""

    path: str
    message: str


async def find_mismatch(schema: str, content: bytes, value: object) -> SchemaMismatch | None:
    """Return how *content*, parsed as *value*, does not fit *schema*; `None` if it does."""
    validator = compile_schema(json.loads(schema))
    # Only with a recursive schema can a deep document repeat the same check over and over.
    if not any(word in schema for word in REFERENCES) and validator.is_valid(value):
        return None
    lines = (await _validate(schema, content)).split(b"\n")
    match lines[0]:
        case b"fits":
            return None
        case b"unfit":
            return SchemaMismatch(tuple(SchemaFault(*json.loads(line)) for line in lines[1:-1]))
        case _:
            raise Broken(f"validating it took more than {SECONDS} s, or too much memory")


async def _validate(schema: str, content: bytes) -> bytes:
    import jsonschema_rs  # `compile_schema` has shown that it is installed

    place = str(Path(jsonschema_rs.__file__).parents[1])
    argv = (sys.executable, "-I", "-S", str(PROGRAM), place, str(SECONDS), str(MOST_FAULTS), str(FAULT_BYTES))
    asked = json.dumps(json.loads(schema)).encode() + b"\n" + content
    done = await proc.run(Command(argv=argv, cwd=Path("/"), stdin=asked), timeout=3 * SECONDS, limit=MOST_BYTES)
    return done.stdout
