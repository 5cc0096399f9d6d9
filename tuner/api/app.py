"""The app: routes, problems, metrics, and nothing that decides."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI

from tuner import __version__
from tuner.api import page, problems, session
from tuner.api.auth import require_key
from tuner.api.hub import Hub
from tuner.api.limits import BodyLimit
from tuner.api.metrics import Latency, Metrics
from tuner.api.routers import (
    advice,
    answers,
    best,
    budgets,
    curves,
    estimates,
    events,
    health,
    jobs,
    logs,
    pilots,
    plans,
    prices,
    spend,
)
from tuner.api.routers.curves import Drawn
from tuner.api.shared import Shared
from tuner.schemas.problem import Problem
from tuner.service.dashboards import optuna_dashboard
from tuner.service.figures import Reader
from tuner.service.wiring import Service

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "content": {"application/problem+json": {}}}
    for status in (401, 404, 409, 422, 503)
}


def create_app(
    service: Service,
    *,
    is_ready: Callable[[], bool] = lambda: True,
    mirrors: Callable[[], Mapping[str, str]] = dict,
    page_files: Path | None = None,
) -> FastAPI:
    """`is_ready` says whether the controller reaches the cluster, `mirrors` how each copy for another tool does; `page_files` is
    where the page at `/` lies, None for none. `state.leaving` is set where the service is about to end."""
    app = FastAPI(
        title="tuner",
        version=__version__,
        summary="Hyperparameter tuning under hard budgets in dollars and GPU-hours",
        redoc_url=None,
    )
    app.state.service = service
    app.state.api_key = service.settings.api_key()
    app.state.is_ready, app.state.leaving = is_ready, threading.Event()
    app.state.hub, app.state.shared, app.state.curves = Hub(), Shared[bytes](), Shared[Drawn]()
    app.state.figures = Reader(service)
    app.state.metrics = Metrics(app.state.figures.read, service.vitals)
    app.state.mirrors = mirrors
    problems.install(app)
    v1 = APIRouter(prefix="/v1", dependencies=[Depends(require_key)], responses=RESPONSES)
    # A request is compared with routes in this order: those that pages ask for again and again come first.
    for part in (
        best,
        answers,
        events,
        jobs,
        curves,
        logs,
        advice,
        pilots,
        estimates,
        plans,
        prices,
        spend,
        budgets,
    ):
        v1.include_router(part.router)
    v1.include_router(session.router)
    app.include_router(v1)
    app.include_router(health.router)
    if (dashboard := optuna_dashboard(service.settings)) is not None:
        from tuner.api import dashboards  # it needs an extra

        dashboards.install(app, dashboard)
    if page_files is not None:
        page.install(app, page_files)
    app.add_middleware(BodyLimit)
    app.add_middleware(Latency, metrics=app.state.metrics)
    return app
