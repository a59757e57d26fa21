"""What an agent may spend."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from decimal import Decimal

from genai_prices import calc_price
from pydantic_ai.models import Model
from pydantic_ai.usage import RequestUsage, RunUsage, UsageLimits

from shoal.errors import AgentError, BadInput, BudgetExceeded, MaxTurns, Unavailable

WHOLE = ("turns", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLimits:
    """What an agent may spend; `None` means no limit.

    *turns* (requests to the model) and *seconds* apply to each prompt, *tokens* and *dollars* to the agent's whole
    life. The forks of `run_parallel_prompts` spend from the budget of their base.
    """

    turns: int | None = 50
    tokens: int | None = None
    dollars: float | Decimal | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            bound = getattr(self, field.name)
            kinds = (int,) if field.name in WHOLE else (int, float, Decimal)
            if bound is not None and (not isinstance(bound, kinds) or not 0 < bound < math.inf):
                what = "a whole number" if field.name in WHOLE else "a number"
                raise BadInput(f"the limit `{field.name}` is {bound}; give {what} over 0, or None for no bound")

    def allowance(self, spent: RunUsage) -> UsageLimits:
        """Return it as pydantic-ai's limits, for a turn that starts with *spent*."""
        return UsageLimits(
            request_limit=None if self.turns is None else spent.requests + self.turns,
            total_tokens_limit=self.tokens,
            cost_limit=self._cost,
        )

    def assert_can_be_held(self, model: Model) -> None:
        """Raise `Unavailable` for a limit in dollars if the price of *model* is unknown."""
        if self.dollars is not None and not _is_priced(model):
            why = f"no price is known for {model.model_name!r}"
            raise Unavailable("a limit in dollars", why, "limit tokens instead, or name a model with a known price")

    def first_spent(self, usage: RunUsage) -> AgentError | None:
        """Name the first exhausted budget of *usage*, if any."""
        return next(self._list_spent(usage), None)

    def first_passed(self, usage: RunUsage) -> AgentError:
        """Name the limit that ended a turn with *usage*."""
        return self.first_spent(usage) or MaxTurns(self.turns or 0)

    def _list_spent(self, usage: RunUsage) -> Iterator[AgentError]:
        if self.tokens is not None and usage.total_tokens >= self.tokens:
            yield BudgetExceeded("tokens", f"{usage.total_tokens} of {self.tokens}")
        if self._cost is not None and usage.cost is not None and usage.cost >= self._cost:
            yield BudgetExceeded("dollars", f"${usage.cost:.4f} of ${self._cost:.4f}")

    @property
    def _cost(self) -> Decimal | None:
        return None if self.dollars is None else Decimal(str(self.dollars))


def as_seconds(timeout: float | None) -> float | None:
    """Return the seconds, or refuse an invalid time."""
    if timeout is not None and (not isinstance(timeout, int | float) or not 0 < timeout < math.inf):
        raise BadInput(f"the timeout is {timeout!r:.40}; give seconds over 0, or None for no bound")
    return timeout


def _is_priced(model: Model) -> bool:
    for provider in (model.system, None):
        try:
            calc_price(RequestUsage(input_tokens=1), model.model_name, provider_id=provider)
        except LookupError:
            continue
        return True
    return False
