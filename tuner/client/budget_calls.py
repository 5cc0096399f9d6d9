"""Calls about what many jobs may spend together: budgets above jobs, and the project's quota."""

from typing import TYPE_CHECKING, Any

from tuner.client import queries
from tuner.client.http import ask, exchange, quoted, request
from tuner.client.methods import call
from tuner.client.queries import refuse_unknown
from tuner.client.steps import Steps

if TYPE_CHECKING:  # each is loaded when it is asked for
    from tuner.schemas.budgets import BudgetAbove, BudgetList
    from tuner.schemas.quota import Quota


class BudgetCalls:
    url: str

    @call
    def budgets(self) -> Steps["BudgetList"]:
        """Budgets above jobs."""
        from tuner.schemas.budgets import BudgetList

        return ask(self.url, BudgetList, "GET", "/v1/budgets")

    @call
    def budget(self, name: str) -> Steps["BudgetAbove"]:
        from tuner.schemas.budgets import BudgetAbove

        return ask(self.url, BudgetAbove, "GET", f"/v1/budgets/{quoted(name)}")

    @call
    def put_budget(self, /, name: str, **budget: Any) -> Steps["BudgetAbove"]:
        """Makes it or puts another in its place: `usd=`, `gpu_hours=`, `match={tag: value}`, `period=`, `timezone=`, `parent=`,
        `alerts=[{"at": 0.8, "url": ...}]`, `new_secret=True`. The answer alone has the webhooks' secret, where that is new."""
        from tuner.schemas.budgets import BudgetAbove

        refuse_unknown(budget, queries.BUDGET)
        return ask(self.url, BudgetAbove, "PUT", f"/v1/budgets/{quoted(name)}", body=budget)

    @call
    def remove_budget(self, name: str) -> Steps[None]:
        yield from exchange(self.url, request("DELETE", f"/v1/budgets/{quoted(name)}"))

    @call
    def quota(self) -> Steps["Quota"]:
        """What the project may spend and have at once, and what of it is used."""
        from tuner.schemas.quota import Quota

        return ask(self.url, Quota, "GET", "/v1/quota")

    @call
    def put_quota(self, /, **quota: Any) -> Steps["Quota"]:
        """Sets all of it anew: `usd=`, `gpu_hours=`, `period=`, `timezone=`, `concurrent_jobs=`, `concurrent_trials=`. What is not
        given is not limited."""
        from tuner.schemas.quota import Quota

        refuse_unknown(quota, queries.QUOTA)
        return ask(self.url, Quota, "PUT", "/v1/quota", body=quota)
