"""The budgets of a run as the gateway holds them: each request is admitted or refused, each answer is counted."""

from collections.abc import Iterable, Sequence
from datetime import date

from shoal.gateway.meters import TokenUsage
from shoal.gateway.prices import find_prices, price, table_date
from shoal.model.budget import ScopedBudget, Spending


class BudgetBook:
    """All budgets of one run, with what was spent of each."""

    def __init__(self, budgets: Iterable[ScopedBudget] = ()) -> None:
        self._budgets = {budget.scope: budget for budget in budgets}

    def add(self, budgets: Iterable[ScopedBudget]) -> None:
        """Hold more budgets; what was spent of one that is held already stays counted."""
        for budget in budgets:
            self._budgets.setdefault(budget.scope, budget)

    def budgets(self, scopes: Sequence[str]) -> list[ScopedBudget]:
        """Return the budgets of these scopes, as far as there are any."""
        return [self._budgets[scope] for scope in scopes if scope in self._budgets]

    def find_reached(self, scopes: Sequence[str]) -> ScopedBudget | None:
        """Return the budget that allows no further request, or `None`."""
        return next((budget for budget in self.budgets(scopes) if budget.why_stopped), None)

    def refuse_unpriced(self, scopes: Sequence[str], format: str, model: str, day: date) -> str | None:
        """Say why a model must not be asked under a budget of dollars, or `None`: nobody could count its cost."""
        if all(budget.limit.usd is None for budget in self.budgets(scopes)) or find_prices(format, model, day):
            return None
        return (
            f"the model {ascii(model)[:80]} has no price in the table of {table_date()}, so a budget in USD cannot be"
            " held; give the budget in `tokens`, or use another model"
        )

    def spend(self, scopes: Sequence[str], format: str, usage: TokenUsage, day: date) -> Spending:
        """Count an answer towards all budgets of these scopes, and return what it cost."""
        spent = price(format, usage, day)
        for budget in self.budgets(scopes):
            self._budgets[budget.scope] = budget.spend(spent)
        return spent
