"""Routes of `/v1/log` and `/v1/{namespace}/log`."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query

from dejavu_cache.model.scenario import Moment

from ..services.log import Action, LogPage, read_log
from ..storage.log import LogFilter
from .common import CurrentCall, KernelName, Namespace, versioned_router

__all__ = ["router"]

router = versioned_router()

_Limit = Annotated[int, Query(ge=1, le=1000)]


def _filter(
    actor: Annotated[str | None, Query(min_length=1, max_length=300)] = None,
    action: Action | None = None,
    kernel: KernelName = None,
    since: Moment | None = None,
    until: Moment | None = None,
    before: Annotated[int | None, Query(ge=1, le=2**62)] = None,
) -> LogFilter:
    return LogFilter(None, actor, action, kernel, _seconds(since), _seconds(until), before)


_Filter = Annotated[LogFilter, Depends(_filter)]


@router.get("/log")
def read_server_log(call: CurrentCall, wanted: _Filter, limit: _Limit = 100) -> LogPage:
    """Return what people changed on the whole server, newest first."""
    return read_log(call.database, call.principal, wanted, limit)


@router.get("/{namespace}/log")
def read_namespace_log(
    namespace: Namespace, call: CurrentCall, wanted: _Filter, limit: _Limit = 100
) -> LogPage:
    """Return what people changed in a namespace, newest first."""
    chosen = wanted._replace(namespace=namespace)
    return read_log(call.database, call.principal, chosen, limit)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()
