"""ASGI middleware and body reading: request log, authentication, limits, strict JSON."""
