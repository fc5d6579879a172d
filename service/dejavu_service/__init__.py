"""The cache server: tuning records over HTTP, stored in SQLite or Postgres."""

from __future__ import annotations

from dejavu_cache.system.deprecated_modules import redirect_modules

_MOVES = {
    "auth": "middleware.authentication",
    "bodies": "middleware.json_body",
    "database": "storage.database",
    "front": "middleware.request_log",
    "limits": "middleware.limits",
    "reads": "bulk_read.answers",
    "revisions": "bulk_read.key_lookups",
    "rules": "services",
    "rules.access": "services.access",
    "rules.leases": "services.leases",
    "rules.merging": "services.merging",
    "rules.misses": "services.misses",
    "rules.pages": "pages.overview pages.worklist pages.namespaces",
    "rules.pins": "services.pins",
    "rules.records": "services.records",
    "rules.retention": "services.retention",
    "rules.tokens": "services.tokens",
    "rules.transfer": "services.transfer",
    "schema": "storage.schema",
    "scopes": "middleware.asgi_scope",
    "shared": "bulk_read.single_flight",
    "tables": "storage.tables",
    "views": "pages.views",
}
redirect_modules(__name__, _MOVES)
