"""Pages for people, to read: HTML without scripts, and each list as a file."""

from . import changes, front, kernel, overview
from .rendering import ErrorPagesMiddleware, router

__all__ = ["ErrorPagesMiddleware", "changes", "front", "kernel", "overview", "router"]
