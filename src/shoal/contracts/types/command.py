"""The contracts `test_suite` and `command`: a command exits with 0 on the work."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import MESSAGE_CHARS, Workbench, escape_text, quote_output
from shoal.model.contract import CommandContract

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("command", "timeout")
NEEDED = (("command",),)


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> CommandContract:
    """Build the contract that *keys* describe."""
    del schemas
    return CommandContract(type=keys.type, only_warns=keys.only_warns, command=keys.command or "", timeout=keys.timeout)


async def check(contract: CommandContract, bench: Workbench) -> str | None:
    """Return how the command failed, or `None`."""
    ran = await bench.run(contract.argv, contract.timeout)
    if ran.exit_code == 0 and ran.failure is None:
        return None
    why = ran.failure or f"it exited with {ran.exit_code}"
    return f"`{escape_text(bench.mask(contract.words), MESSAGE_CHARS)}` did not pass: {why}{quote_output(ran.output)}"
