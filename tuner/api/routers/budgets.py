"""Budgets above jobs."""

from fastapi import APIRouter, Response

from tuner.api import present_budgets
from tuner.api.deps import Svc
from tuner.schemas import budgets as wire
from tuner.service import above

router = APIRouter(prefix="/budgets", tags=["spend"])


@router.get("")
def list_budgets(service: Svc) -> wire.BudgetList:
    """By name, with what is spent, held and left of the present period, and when each runs out."""
    return wire.BudgetList(items=[present_budgets.budget_of(view) for view in above.all_of(service)])


@router.get("/{name}")
def get_budget(name: str, service: Svc) -> wire.BudgetAbove:
    return present_budgets.budget_of(above.get(service, name))


@router.put("/{name}", status_code=200, responses={201: {"model": wire.BudgetAbove}})
def put_budget(
    name: str, body: wire.BudgetAboveRequest, response: Response, service: Svc
) -> wire.BudgetAbove:
    """Makes a budget (201) or puts another in its place. What its jobs have spent of the present period counts; a budget below
    that is 409."""
    view, is_new = above.put(service, present_budgets.budget_from(name, body), new_secret=body.new_secret)
    response.status_code = 201 if is_new else 200
    return present_budgets.budget_of(view)


@router.delete("/{name}", status_code=204)
def delete_budget(name: str, service: Svc) -> None:
    """Jobs that waited for it go on."""
    above.remove(service, name)
