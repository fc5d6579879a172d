"""The published OpenAPI: FastAPI's, with the models that are sent as kept text, and the tokens."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from dejavu_cache.model.record import Record, RecordSet
from dejavu_cache.model.scenario import Context, Scenario

from .problems import Refusal

__all__ = ["publish"]


class ContextPage(BaseModel):
    """Contexts, and where the next page begins."""

    contexts: list[Context]
    next: str | None


class WorklistItem(BaseModel):
    """A scenario that was wanted and not there."""

    context: Context
    scenario: Scenario
    count: int
    first_seen: datetime
    last_seen: datetime


class Worklist(BaseModel):
    """The misses, most wanted first."""

    misses: list[WorklistItem]


_TEXTS: tuple[type[BaseModel], ...] = (ContextPage, Record, RecordSet, Refusal, Worklist)


def publish(app: FastAPI) -> None:
    """Completes the OpenAPI of an app."""
    schema = app.openapi()
    components: dict[str, Any] = schema.setdefault("components", {})
    _, kept = models_json_schema(
        [(model, "validation") for model in _TEXTS], ref_template="#/components/schemas/{model}"
    )
    components["schemas"] = {**kept["$defs"], **components.get("schemas", {})}
    components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    schema["security"] = [{"token": []}]
    for path in ("/livez", "/readyz"):
        schema["paths"][path]["get"]["security"] = []
