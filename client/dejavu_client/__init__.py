"""Command line and HTTP client of dejavu-cache."""

from __future__ import annotations

from dejavu_cache.system.deprecated_modules import redirect_modules

_MOVES = {
    "circuit": "http.circuit_breaker",
    "client": "http.protocol_client",
    "commands": "cli.commands",
    "errors": "http.errors",
    "output": "cli.output cli.options cli.chosen_store",
    "progress": "cli.progress",
    "remote": "http.remote_store",
    "sender": "http.sender",
    "spool": "http.spool",
}
redirect_modules(__name__, _MOVES)
