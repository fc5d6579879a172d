"""Additions to FastAPI's OpenAPI: schemas of answers sent as stored text, and authentication."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario

from .problems import Refusal

__all__ = ["describe", "description"]


class ContextPage(BaseModel):
    """Contexts, and the digest to continue after; null on the last page."""

    contexts: list[Context]
    next: str | None


class ScenarioList(BaseModel):
    """The scenarios that have records in a context."""

    scenarios: list[Scenario]


class WorklistItem(BaseModel):
    """A scenario without a record, and how often it was looked up."""

    context: Context
    scenario: Scenario
    count: int
    first_seen: datetime
    last_seen: datetime


class Worklist(BaseModel):
    """Misses, the most frequent first."""

    misses: list[WorklistItem]


class ContextChanges(BaseModel):
    """What has changed of a context that a client has copies of."""

    revision: str
    """The present revision, to send the next time; empty if the context does not exist."""
    records: list[Record]
    """The records that differ from the client's."""
    gone: list[str]
    """Digests of the scenarios that have no record."""
    recalls: dict[str, list[str]]
    """Digests of measurements and pins that no copy may keep, by the digest of the scenario."""


class Revalidation(BaseModel):
    """Changes by the digest of their context; contexts without any are left out."""

    contexts: dict[str, ContextChanges]


_MODELS: tuple[type[BaseModel], ...] = (
    ContextPage,
    Record,
    RecordSet,
    Refusal,
    Revalidation,
    ScenarioList,
    Worklist,
)


def describe(request: Request) -> Response:
    """Answer with the app's OpenAPI; in a thread, since making it takes a while."""
    return Response(description(request.app), media_type="application/json")


@cache
def description(app: FastAPI) -> str:
    """Return FastAPI's description of an app, with what it does not know of, as JSON."""
    schema = app.openapi()
    _complete(schema)
    return json.dumps(schema)


def _complete(schema: dict[str, Any]) -> None:
    """Add the schemas that no route declares as its response model, and the tokens."""
    components: dict[str, Any] = schema.setdefault("components", {})
    _, definitions = models_json_schema(
        [(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}"
    )
    components["schemas"] = {**definitions["$defs"], **components.get("schemas", {})}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    for path in ("/livez", "/readyz"):
        schema["paths"][path]["get"]["security"] = []
