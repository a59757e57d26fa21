"""The contract `agent_review`: another agent finds that the work meets the criteria."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shoal.contracts.workbench import Workbench
from shoal.model.contract import AgentReview

if TYPE_CHECKING:
    from shoal.pipeline.keys.contracts import ContractShape

KEYS = ("persona", "agent", "criteria", "timeout")
NEEDED = (("persona", "agent"), ("criteria",))


def build(keys: "ContractShape", schemas: Mapping[str, str]) -> AgentReview:
    """Build the contract that *keys* describe."""
    del schemas
    return AgentReview(
        type=keys.type,
        only_warns=keys.only_warns,
        criteria=keys.criteria or "",
        persona=keys.persona,
        agent=keys.agent,
        timeout=keys.timeout,
    )


async def check(contract: AgentReview, bench: Workbench) -> str | None:
    """Return why the reviewer rejects the work, or `None`."""
    from shoal.contracts.review import review  # it compiles regular expressions

    return await review(bench, contract)
