"""Routes for shared budgets."""

from fastapi import APIRouter, Response

from tuner.api import serialize
from tuner.api.deps import Svc
from tuner.schemas import budgets as wire
from tuner.service import shared_budgets

router = APIRouter(prefix="/budgets", tags=["spend"])


@router.get("")
def list_budgets(service: Svc) -> wire.BudgetList:
    """List all shared budgets by name, with the amounts spent, held and left in the present period, and when each runs out."""
    return wire.BudgetList(items=[serialize.budget_of(view) for view in shared_budgets.all_of(service)])


@router.get("/{name}")
def get_budget(name: str, service: Svc) -> wire.BudgetAbove:
    """Return a shared budget with its spend and forecast."""
    return serialize.budget_of(shared_budgets.get(service, name))


@router.put("/{name}", status_code=200, responses={201: {"model": wire.BudgetAbove}})
def put_budget(
    name: str, body: wire.BudgetAboveRequest, response: Response, service: Svc
) -> wire.BudgetAbove:
    """Create a shared budget (201), or replace it (200).

    What the jobs that it covers have already spent and hold in the current period counts towards it. The answer is 409 if the new
    limit is below that amount.
    """
    view, is_new = shared_budgets.put(service, serialize.budget_from(name, body), new_secret=body.new_secret)
    response.status_code = 201 if is_new else 200
    return serialize.budget_of(view)


@router.delete("/{name}", status_code=204)
def delete_budget(name: str, service: Svc) -> None:
    """Delete a shared budget. Jobs that waited for it continue. The answer is 409 if it is the parent of other budgets."""
    shared_budgets.remove(service, name)
