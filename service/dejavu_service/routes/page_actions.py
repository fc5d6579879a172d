"""Forms of the pages that change something: pins, promotion, the worklist."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

from fastapi import Response

from ..errors import InvalidRequestError, NotFoundError
from ..pages.scenario import find_config
from ..services import misses, promotions, records
from ..services.access import NAMESPACE
from .common import ContextDigest, Namespace, ScenarioDigest
from .forms import AdminForm, Form, WriterForm
from .page_response import pages_router, redirect

__all__ = ["router"]

router = pages_router()

_DIGEST = re.compile(r"[0-9a-f]{24}")


@router.post("/pages/{namespace}/contexts/{context}/scenarios/{scenario}/pin")
def pin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, form: AdminForm
) -> Response:
    """Pin one of a scenario's measured configs."""
    call = form.call
    config = find_config(call.database, namespace, context, scenario, form.text("config", 24))
    records.set_pin(call.database, call.principal, namespace, context, scenario, config, by="")
    return redirect(f"/pages/{namespace}/contexts/{context}/scenarios/{scenario}")


@router.post("/pages/{namespace}/contexts/{context}/scenarios/{scenario}/unpin")
def unpin(
    namespace: Namespace, context: ContextDigest, scenario: ScenarioDigest, form: AdminForm
) -> Response:
    """Remove a pin."""
    call = form.call
    records.set_pin(call.database, call.principal, namespace, context, scenario, None, by="")
    return redirect(f"/pages/{namespace}/contexts/{context}/scenarios/{scenario}")


@router.post("/pages/{namespace}/promote")
def promote(namespace: Namespace, form: AdminForm) -> Response:
    """Copy a namespace's records to another, of all kernels or one, and show both compared."""
    call, target, kernel = form.call, form.text("to", 64), form.text("kernel")
    if not re.fullmatch(NAMESPACE, target):
        raise InvalidRequestError(f"{target!r} is no name of a namespace: choose another one")
    promotions.promote(call.database, call.principal, namespace, target, kernel or None, None)
    return redirect(f"/pages/{namespace}/compare?{urlencode({'to': target, 'kernel': kernel})}")


@router.post("/pages/{namespace}/misses/claim")
def claim(namespace: Namespace, form: WriterForm) -> Response:
    """Note that the caller will tune a missed scenario."""
    misses.claim_miss(form.call.database, form.call.principal, namespace, *_miss(form))
    return _worklist(namespace, form)


@router.post("/pages/{namespace}/misses/release")
def release(namespace: Namespace, form: WriterForm) -> Response:
    """Note that nobody will tune a missed scenario."""
    call = form.call
    misses.claim_miss(call.database, call.principal, namespace, *_miss(form), release=True)
    return _worklist(namespace, form)


@router.post("/pages/{namespace}/misses/dismiss")
def dismiss(namespace: Namespace, form: WriterForm) -> Response:
    """Take a scenario off the worklist."""
    misses.dismiss_miss(form.call.database, form.call.principal, namespace, *_miss(form))
    return _worklist(namespace, form)


def _miss(form: Form) -> tuple[str, str]:
    context, scenario = form.text("context", 24), form.text("scenario", 24)
    if not _DIGEST.fullmatch(context) or not _DIGEST.fullmatch(scenario):
        raise NotFoundError("there is no such scenario on the worklist")
    return context, scenario


def _worklist(namespace: str, form: Form) -> Response:
    query = {name: form.text(name) for name in ("kernel", "device") if form.text(name)}
    return redirect(f"/pages/{quote(namespace)}/misses?{urlencode(query)}")
