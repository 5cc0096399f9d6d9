"""Calls about limits on many jobs together: shared budgets, and the project's quota."""

from typing import TYPE_CHECKING, Any

from tuner.client import queries
from tuner.client.http import ask, exchange, quoted, request
from tuner.client.methods import call
from tuner.client.queries import refuse_unknown
from tuner.client.steps import Steps

if TYPE_CHECKING:  # each is imported by the call that needs it, so that importing the client stays fast
    from tuner.schemas.budgets import BudgetAbove, BudgetList
    from tuner.schemas.quota import Quota


class BudgetCalls:
    url: str

    @call
    def budgets(self) -> Steps["BudgetList"]:
        """Return all shared budgets."""
        from tuner.schemas.budgets import BudgetList

        return ask(self.url, BudgetList, "GET", "/v1/budgets")

    @call
    def budget(self, name: str) -> Steps["BudgetAbove"]:
        from tuner.schemas.budgets import BudgetAbove

        return ask(self.url, BudgetAbove, "GET", f"/v1/budgets/{quoted(name)}")

    @call
    def put_budget(self, /, name: str, **budget: Any) -> Steps["BudgetAbove"]:
        """Create a shared budget, or replace it.

        Keyword arguments are `usd=`, `gpu_hours=`, `match={tag: value}`, `period=`, `timezone=`, `parent=`,
        `alerts=[{"at": 0.8, "url": ...}]` and `new_secret=True`. A new secret for signing the webhooks is returned only here.
        """
        from tuner.schemas.budgets import BudgetAbove

        refuse_unknown(budget, queries.BUDGET)
        return ask(self.url, BudgetAbove, "PUT", f"/v1/budgets/{quoted(name)}", body=budget)

    @call
    def remove_budget(self, name: str) -> Steps[None]:
        yield from exchange(self.url, request("DELETE", f"/v1/budgets/{quoted(name)}"))

    @call
    def quota(self) -> Steps["Quota"]:
        """Return the project's quota, and how much of it is used."""
        from tuner.schemas.quota import Quota

        return ask(self.url, Quota, "GET", "/v1/quota")

    @call
    def put_quota(self, /, **quota: Any) -> Steps["Quota"]:
        """Replace the project's quota.

        Keyword arguments are `usd=`, `gpu_hours=`, `period=`, `timezone=`, `concurrent_jobs=` and `concurrent_trials=`. A limit that is
        not given is removed.
        """
        from tuner.schemas.quota import Quota

        refuse_unknown(quota, queries.QUOTA)
        return ask(self.url, Quota, "PUT", "/v1/quota", body=quota)
