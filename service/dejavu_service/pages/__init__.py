"""Pages for people: HTML without scripts, and each list as a file."""

from . import changes, kernel, overview, scenario, tokens
from .rendering import ErrorPagesMiddleware, router

__all__ = ["ErrorPagesMiddleware", "changes", "kernel", "overview", "router", "scenario", "tokens"]
