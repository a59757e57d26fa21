"""Compile JSON Schemas without ever fetching anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shoal.errors import BadInput, Unavailable
from shoal.model.contract import canonical_schema
from shoal.pipeline.problems import printable

if TYPE_CHECKING:
    from jsonschema_rs import Validator

MOST_SCHEMA_BYTES = 256 * 1024
SHOWN = 200


class BadSchema(BadInput):
    """An invalid schema; *path* leads to the fault."""

    def __init__(self, why: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"this is not a usable JSON Schema: {printable(why)}")
        self.path = path


def compile_schema(schema: dict[str, object] | bool) -> Validator:
    """Compile *schema*; raise `BadSchema` if it is malformed, or refers to something outside itself."""
    try:
        import jsonschema_rs  # 31 ms, which only its users pay for
    except ImportError:
        remedy = "`pip install jsonschema-rs`"
        raise Unavailable("a contract of type json_schema", "jsonschema-rs is not installed", remedy) from None
    try:
        # Offline: otherwise whoever checks would read or fetch what a reference names.
        return jsonschema_rs.validator_for(schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        why = " ".join(error.message.split("\n")[0].split())[:SHOWN]
        raise BadSchema(f"{why}{_remedy(why)}", tuple(error.instance_path)) from None
    except (ValueError, RecursionError, jsonschema_rs.ReferencingError) as error:
        raise BadSchema(" ".join(str(error).split())[:SHOWN]) from None


def canonical(schema: dict[str, object] | bool) -> str:
    """Check *schema* and return it as canonical text; raise `BadSchema`."""
    try:
        text = canonical_schema(schema)
    except (ValueError, RecursionError) as error:
        raise BadSchema(str(error)) from None
    if len(text) > MOST_SCHEMA_BYTES:
        raise BadSchema(f"it is larger than {MOST_SCHEMA_BYTES // 1024} KiB")
    compile_schema(schema)
    return text


def _remedy(why: str) -> str:
    return "; nothing is fetched: write what it refers to below `$defs`" if "etriev" in why else ""
