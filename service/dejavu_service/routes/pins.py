"""Routes of `/v1/{namespace}/contexts/{context}/pins`."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from dejavu_cache.model.scenario import Config

from ..middleware.bodies import accepts
from ..services import pins
from .common import (
    ContextDigest,
    CurrentCall,
    Namespace,
    ScenarioDigest,
    json_response,
    responds_with,
    versioned_router,
)

__all__ = ["router"]

router = versioned_router()


class Choice(BaseModel):
    """The config that readers shall get, and who chose it."""

    model_config = ConfigDict(extra="forbid")

    config: Config
    by: str = Field(default="", max_length=200)


@router.put("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with("Record"))
@accepts("admin")
def put_pin(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    choice: Choice,
    call: CurrentCall,
) -> Response:
    """Pin a config, which overrides the measurements."""
    record = pins.set_pin(
        call.database, call.principal, namespace, context, scenario, choice.config, choice.by
    )
    return json_response(record)


@router.delete("/{namespace}/contexts/{context}/pins/{scenario}", responses=responds_with("Record"))
def delete_pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, call: CurrentCall
) -> Response:
    """Remove a pin."""
    record = pins.set_pin(
        call.database, call.principal, namespace, context, scenario, config=None, by=""
    )
    return json_response(record)
