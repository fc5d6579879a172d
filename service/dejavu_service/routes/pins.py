"""`/v1/{namespace}/contexts/{context}/pins`."""

from __future__ import annotations

from fastapi import Response
from pydantic import BaseModel, ConfigDict, Field

from dejavu_cache.model.scenario import Config

from ..services import pins as rules
from .common import ContextDigest, Here, Namespace, ScenarioDigest, json_text, router, shows

__all__ = ["pins"]

pins = router()


class Choice(BaseModel):
    """The config that readers shall get, and who says so."""

    model_config = ConfigDict(extra="forbid")

    config: Config
    by: str = Field(default="", max_length=200)


@pins.put("/{namespace}/contexts/{context}/pins/{scenario}", responses=shows("Record"))
def put_pin(
    namespace: Namespace,
    context: ContextDigest,
    scenario: ScenarioDigest,
    choice: Choice,
    here: Here,
) -> Response:
    """Chooses a config over the measurements."""
    place = (namespace, context, scenario)
    return json_text(rules.choose(here.server.database, here.who, *place, choice.config, choice.by))


@pins.delete("/{namespace}/contexts/{context}/pins/{scenario}", responses=shows("Record"))
def delete_pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, here: Here
) -> Response:
    """Takes a choice back."""
    return json_text(
        rules.choose(here.server.database, here.who, namespace, context, scenario, None, "")
    )
