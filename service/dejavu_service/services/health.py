"""Routes about the server itself: `/livez`, `/readyz`, `/metrics` and `/v1/openapi.json`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request, Response
from pydantic import BaseModel
from sqlalchemy import func, select
from starlette.concurrency import run_in_threadpool

from ..problems import RESPONSES, Refusal, problem
from ..storage.database import IS_DAMAGED, Database
from ..storage.schema import SchemaState, state
from ..storage.tables import records
from .access import EVERYWHERE
from .requests import CurrentCall, TurnRoute

if TYPE_CHECKING:
    from ..server import Server

router = APIRouter(route_class=TurnRoute)


class Health(BaseModel):
    """The server is well."""

    status: str = "ok"


@router.get("/livez")
async def livez() -> Health:
    """Report that the process answers."""
    return Health()


@router.get("/readyz", response_model=Health, responses={503: RESPONSES[503]})
async def readyz(request: Request) -> Health | Response:
    """Report whether requests may come: the database answers, and with a schema that fits."""
    server: Server = request.app.state.server
    if server.stopping.is_set():
        return problem(503, "the server is stopping: ask another one", headers={"Retry-After": "1"})
    current = await server.readiness.get(None, lambda: run_in_threadpool(_look, server.database))
    if current is not SchemaState.USABLE:
        return problem(503, f"the database {current.value}", headers={"Retry-After": "5"})
    if server.database.is_damaged:
        return problem(503, IS_DAMAGED, headers={"Retry-After": "60"})
    return Health()


def _look(database: Database) -> SchemaState:
    """Return the schema's state, after reading as the records are read."""
    with database.read() as connection:
        current = state(connection)
        if current is SchemaState.USABLE:
            connection.execute(select(func.substr(records.c.text, 1, 1)).limit(1)).first()
    return current


@router.get(
    "/metrics", response_class=Response, responses={401: RESPONSES[401], 403: RESPONSES[403]}
)
def metrics(call: CurrentCall) -> Response:
    """Return the metrics for Prometheus."""
    call.principal.require("read", EVERYWHERE)
    return Response(call.server.metrics.text(), media_type="text/plain; version=0.0.4")


class DescribedApp(FastAPI):
    """An app whose OpenAPI says how a request is authenticated and what a refusal looks like."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, which is made once."""
        if self.openapi_schema is None:
            schema = super().openapi()
            components = schema["components"]
            components["schemas"]["Refusal"] = Refusal.model_json_schema()
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
            for path in ("/livez", "/readyz"):
                schema["paths"][path]["get"]["security"] = []
        return self.openapi_schema or {}
