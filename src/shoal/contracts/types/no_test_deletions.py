"""The contract `no_test_deletions`: no test file is gone, and there are no fewer tests than before."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import Workbench
from shoal.model.contract import NoTestDeletions

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("patterns",)
NEEDED = ()


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> NoTestDeletions:
    """Build the contract that *keys* describe."""
    del schemas
    return NoTestDeletions(type=keys.type, only_warns=keys.only_warns, patterns=tuple(keys.patterns or ()))


async def check(contract: NoTestDeletions, bench: Workbench) -> str | None:
    """Return which tests are lost, or `None`."""
    from shoal.contracts.test_deletions import find_lost_tests  # it runs git, and compiles a large expression

    return await find_lost_tests(bench, contract.patterns)
