"""The contract `json_schema`: a JSON file of the work, or an artifact, fits a schema."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import MESSAGE_CHARS, Workbench, escape_text, read_file, show_file
from shoal.model.artifact import document
from shoal.model.contract import JsonSchema
from shoal.pipeline.json_schema import canonical

if TYPE_CHECKING:
    from shoal.contracts.json_schema import SchemaFault
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("path", "artifact", "schema", "schema_file")
NEEDED = (("path", "artifact"), ("schema", "schema_file"))
JSON_BYTES = 4 * 2**20


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> JsonSchema:
    """Build the contract that *keys* describe; *schemas* has those of files."""
    schema = schemas[keys.schema_file] if keys.schema_file else canonical(keys.schema_ or {})
    return JsonSchema(type=keys.type, only_warns=keys.only_warns, schema=schema, path=keys.path, artifact=keys.artifact)


async def check(contract: JsonSchema, bench: Workbench) -> str | None:
    """Return what does not fit the schema, or `None`."""
    from shoal.contracts.json_schema import find_mismatch  # it starts a process

    if contract.path is not None:
        what, content = show_file(bench, contract.path), await read_file(bench, contract.path, JSON_BYTES + 1)
    else:
        what = f"the artifact {contract.artifact}"
        content = await bench.artifact(contract.artifact or "", JSON_BYTES + 1)
    if content is None:
        return f"{what} is missing, or is not a regular file"
    if len(content) > JSON_BYTES:
        return f"{what} is larger than {JSON_BYTES // 2**20} MiB"
    try:
        value = document(content)
    except ValueError as error:
        return f"{what} is not JSON: {escape_text(bench.mask(str(error)), MESSAGE_CHARS)}"
    wrong = await find_mismatch(contract.schema, content, value)
    if wrong is None:
        return None
    found = "; ".join(_describe(bench, fault) for fault in wrong.faults)
    return f"{what} does not fit the schema: {found or 'too many places to list'}"


def _describe(bench: Workbench, fault: "SchemaFault") -> str:
    where = bench.mask(fault.path)
    message = escape_text(bench.mask(fault.message), MESSAGE_CHARS)
    return f"{escape_text(where, MESSAGE_CHARS)}: {message}" if where else message
