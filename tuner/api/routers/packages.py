"""Routes for packages with trainables. They are available if the operator has enabled packages."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from tuner.api.deps import Limit, Svc, page_of, time_and_id
from tuner.schemas import answers as show
from tuner.service import packages

router = APIRouter(prefix="/packages", tags=["packages"])
BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/zip": {"schema": {"type": "string", "format": "binary"}}},
    }
}
Name = Annotated[str | None, Query(max_length=100)]


@router.post(
    "",
    status_code=201,
    response_model=show.Package,
    responses={200: {"model": show.Package}},
    openapi_extra=BODY,
)
async def create_package(
    request: Request, response: Response, service: Svc, name: Name = None
) -> show.Package:
    """Upload a .zip or .whl of pure Python.

    If the same bytes were uploaded before, the answer is 200 with that package, even if its name differs. The answer is 409 if packages are
    disabled.
    """
    packages.check_on(service.settings)  # before the body is read, so that a refused upload is not received
    data = await request.body()
    row, is_new = await run_in_threadpool(packages.put, service, data, name)
    response.status_code = 201 if is_new else 200
    response.headers["Location"] = f"/v1/packages/{row.id}"
    return show.Package.model_validate(row)


@router.get("")
def list_packages(service: Svc, limit: Limit = 50, cursor: str | None = None) -> show.PackagePage:
    """List the packages of the project, newest first."""
    rows = packages.page(service, before=time_and_id(cursor), limit=limit + 1)
    return show.PackagePage.model_validate(page_of(rows, limit, lambda row: (row.created_at, row.sha256)))


@router.get("/{package}")
def get_package(package: str, service: Svc) -> show.Package:
    """Return the id, name and size of an uploaded package, without its content."""
    return show.Package.model_validate(packages.get(service, package))
