"""Routes of `/v1/log` and `/v1/{namespace}/log`."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from ..services.log import LogFilter, LogPage, read_log
from .common import CurrentCall, Namespace, versioned_router

__all__ = ["router"]

router = versioned_router()

_Filter = Annotated[LogFilter, Query()]


@router.get("/log")
def read_server_log(call: CurrentCall, wanted: _Filter) -> LogPage:
    """Return what people changed on the whole server, newest first."""
    return read_log(call.database, call.principal, None, wanted)


@router.get("/{namespace}/log")
def read_namespace_log(namespace: Namespace, call: CurrentCall, wanted: _Filter) -> LogPage:
    """Return what people changed in a namespace, newest first."""
    return read_log(call.database, call.principal, namespace, wanted)
