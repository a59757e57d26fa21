"""The budgets of a run: each request is admitted or refused, each answer is counted."""

from collections.abc import Sequence
from datetime import date

from shoal.gateway.meters import TokenUsage
from shoal.gateway.prices import find_prices, price, table_date
from shoal.model.budget import ScopedBudget, Spending, SpendingLimit


class BudgetBook:
    """What each scope has spent, and what it may spend."""

    def __init__(self) -> None:
        self._limits: dict[str, SpendingLimit] = {}
        self._spent: dict[str, Spending] = {}

    def add(self, budget: ScopedBudget) -> None:
        """Add a budget; spending that was counted for its scope before still counts."""
        self._limits[budget.scope] = budget.limit
        self._spent.setdefault(budget.scope, budget.spent)

    def add_spent(self, scopes: Sequence[str], spent: Spending) -> None:
        """Count what was spent."""
        for scope in scopes:
            self._spent[scope] = self._spent.get(scope, Spending()) + spent

    def budgets(self, scopes: Sequence[str]) -> list[ScopedBudget]:
        """Return the budgets of these scopes, if any."""
        return [
            ScopedBudget(scope=scope, limit=self._limits[scope], spent=self._spent.get(scope, Spending()))
            for scope in scopes
            if scope in self._limits
        ]

    def find_reached(self, scopes: Sequence[str]) -> ScopedBudget | None:
        """Return a budget that is used up, or `None`."""
        return next((budget for budget in self.budgets(scopes) if budget.why_stopped), None)

    def refuse_unpriced(
        self, scopes: Sequence[str], format: str, model: str, day: date, surcharge: str = ""
    ) -> str | None:
        """Return why a request is refused under a budget in dollars, because its price is unknown, or `None`."""
        if all(budget.limit.usd is None for budget in self.budgets(scopes)):
            return None
        if surcharge:
            return f"`{surcharge}` changes the price, so a budget in USD cannot be held; give the budget in `tokens`"
        if find_prices(format, model, day):
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
