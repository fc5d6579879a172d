"""ASGI middleware: authentication, limits, and a log line per request."""
