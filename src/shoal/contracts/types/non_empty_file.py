"""The contract `non_empty_file`: a regular file of the work is not empty."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import Workbench, read_file, show_file
from shoal.model.contract import NonEmptyFile

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("path",)
NEEDED = (("path",),)
BLANK_BYTES = 2**20


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> NonEmptyFile:
    """Build the contract that *keys* describe."""
    del schemas
    return NonEmptyFile(type=keys.type, only_warns=keys.only_warns, path=keys.path or "")


async def check(contract: NonEmptyFile, bench: Workbench) -> str | None:
    """Return that the file is missing or empty, or `None`."""
    content = await read_file(bench, contract.path, BLANK_BYTES)
    if content is None:
        return f"{show_file(bench, contract.path)} is missing, or is not a regular file"
    return None if content.strip() else f"{show_file(bench, contract.path)} is empty or blank"
