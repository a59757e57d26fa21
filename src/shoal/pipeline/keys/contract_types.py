"""The types of contract by name: to add one, write its module and its line in `KINDS`."""

import importlib
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Protocol, cast

from shoal.errors import UnknownName
from shoal.model.contract import Contract

if TYPE_CHECKING:
    from shoal.pipeline.fields import Shape
    from shoal.pipeline.keys.contracts import ContractShape

KINDS = {
    "json_schema": "shoal.contracts.types.json_schema",
    "test_suite": "shoal.contracts.types.command",
    "command": "shoal.contracts.types.command",
    "non_empty_file": "shoal.contracts.types.non_empty_file",
    "source_diff": "shoal.contracts.types.source_diff",
    "no_test_deletions": "shoal.contracts.types.no_test_deletions",
    "agent_review": "shoal.contracts.types.agent_review",
}


class ContractType(Protocol):
    """What the module of a type defines for YAML, besides the `check` that `contracts/check.py` calls.

    Keys that no other type has are the fields of a `Shape` that the module names `SHAPE`.
    """

    KEYS: tuple[str, ...]
    """Its keys, besides those that all types have."""
    NEEDED: tuple[tuple[str, ...], ...]
    """Of each of these groups of keys, exactly one must be given."""

    def build(self, keys: "ContractShape", schemas: Mapping[str, str]) -> Contract:
        """Build the contract that *keys* describe; *schemas* are those of the files that the document names."""


def load_type(name: str) -> ContractType:
    """Return what the type called *name* means in YAML."""
    return cast("ContractType", load_module(name))


def load_module(name: str) -> ModuleType:
    """Import the module of the type called *name*; raise `UnknownName` where there is none."""
    if name not in KINDS:
        raise UnknownName("contract type", name, KINDS)
    return importlib.import_module(KINDS[name])


def own_shapes() -> Iterator[type["Shape"]]:
    """Yield the shapes with which types describe keys of their own."""
    shapes = (getattr(load_module(name), "SHAPE", None) for name in KINDS)
    return (shape for shape in dict.fromkeys(shapes) if shape is not None)
