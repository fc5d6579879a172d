"""`/livez`, `/readyz` and `/metrics`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from ..problems import RESPONSES, problem
from ..services.access import EVERYWHERE
from ..storage.schema import State, state
from .common import Here

__all__ = ["health"]

health = APIRouter()


class Health(BaseModel):
    """Well."""

    status: str = "ok"


@health.get("/livez")
async def livez() -> Health:
    """The process answers."""
    return Health()


@health.get("/readyz", response_model=Health, responses={503: RESPONSES[503]})
async def readyz(request: Request) -> Health | Response:
    """The database answers, and its schema is the one this version works with."""
    found = await run_in_threadpool(state, request.app.state.server.database)
    if found is not State.CURRENT:
        detail = f"the database's schema is {found.value}: run  dejavu-cache db upgrade"
        return problem(503, detail, headers={"Retry-After": "5"})
    return Health()


@health.get(
    "/metrics", response_class=Response, responses={401: RESPONSES[401], 403: RESPONSES[403]}
)
def metrics(here: Here) -> Response:
    """For Prometheus."""
    here.who.require("read", EVERYWHERE)
    return Response(here.server.metrics.text(), media_type="text/plain; version=0.0.4")
