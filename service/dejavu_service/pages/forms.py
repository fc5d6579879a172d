"""Forms of the pages: their fields, and the proof that a page of this server sent them."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import Annotated, NamedTuple
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from ..errors import InvalidRequestError
from ..problems import ProblemError
from ..routes.common import Call, CurrentCall, media_type, read_body
from ..services.access import EVERYWHERE, Role

__all__ = ["AdminForm", "Form", "WriterForm", "form_proof", "read_fields"]

_MOST_BYTES = 16 * 1024
_MOST_FIELDS = 50
_MEDIA_TYPE = "application/x-www-form-urlencoded"
_OWN_KEY = secrets.token_bytes(32)
"""Key of the proofs where requests need no token, which only this machine's can do."""


class Form(NamedTuple):
    """The fields of a form, and the call that sent it."""

    call: Call
    fields: dict[str, str]

    def text(self, name: str, longest: int = 500) -> str:
        """Return a field, empty if it was left out.

        Raises:
            InvalidRequestError: The field is too long or has control characters.
        """
        value = self.fields.get(name, "").strip()
        if len(value) > longest or any(ord(character) < 32 for character in value):
            raise InvalidRequestError(f"{name}: at most {longest} characters, in one line")
        return value


def form_proof(call: Call) -> str:
    """Return what the forms of a page carry, which only who knows the token can compute.

    It depends on the token alone, so that a form works on every replica.
    """
    key = call.credential.encode() or _OWN_KEY
    return hmac.new(key, b"dejavu-cache form", hashlib.sha256).hexdigest()


async def read_fields(request: Request) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        ProblemError: 415, it is no form; 413, it is too long.
        InvalidRequestError: It has too many fields.
    """
    if media_type(request) != _MEDIA_TYPE:
        raise ProblemError(415, f"this takes what a form of the pages sends: {_MEDIA_TYPE}")
    body = await read_body(request, _MOST_BYTES)
    try:
        pairs = parse_qsl(
            body.decode(), keep_blank_values=True, max_num_fields=_MOST_FIELDS, errors="strict"
        )
    except ValueError:
        raise InvalidRequestError("this is no form of the pages: reload the page") from None
    return dict(pairs)


async def _read_form(role: Role, request: Request, call: Call) -> Form:
    """Read a form of who has a role in the path's namespace, or in all if the path has none.

    The role is checked before the form is read.
    """
    call.principal.require(role, request.path_params.get("namespace", EVERYWHERE))
    fields = await read_fields(request)
    if not hmac.compare_digest(fields.pop("proof", "").encode(), form_proof(call).encode()):
        raise ProblemError(
            403, "this form is of another site or an earlier login: reload the page, try again"
        )
    return Form(call, fields)


async def _read_admins_form(request: Request, call: CurrentCall) -> Form:
    return await _read_form("admin", request, call)


async def _read_writers_form(request: Request, call: CurrentCall) -> Form:
    return await _read_form("write", request, call)


AdminForm = Annotated[Form, Depends(_read_admins_form)]
WriterForm = Annotated[Form, Depends(_read_writers_form)]
