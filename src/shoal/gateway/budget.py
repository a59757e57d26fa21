"""The budgets of a run: each request is admitted or refused, each answer is counted."""

from collections.abc import Sequence
from datetime import date

from shoal.gateway.meters import TokenUsage
from shoal.gateway.prices import find_prices, price, table_date
from shoal.model.budget import ScopedBudget, Spending, SpendingLimit


class BudgetBook:
    """What was spent by each scope, and what it may spend."""

    def __init__(self) -> None:
        self._limits: dict[str, SpendingLimit] = {}
        self._spent: dict[str, Spending] = {}

    def add(self, budget: ScopedBudget) -> None:
        """Hold a budget; what was spent of one that is known already stays counted."""
        self._limits[budget.scope] = budget.limit
        self._spent.setdefault(budget.scope, budget.spent)

    def add_spent(self, scopes: Sequence[str], spent: Spending) -> None:
        """Count what was spent."""
        for scope in scopes:
            self._spent[scope] = self._spent.get(scope, Spending()) + spent

    def budgets(self, scopes: Sequence[str]) -> list[ScopedBudget]:
        """Return the budgets of these scopes, as far as there are any."""
        return [
            ScopedBudget(scope=scope, limit=self._limits[scope], spent=self._spent.get(scope, Spending()))
            for scope in scopes
            if scope in self._limits
        ]

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
        self.add_spent(scopes, spent)
        return spent
