"""Lines above a context's table: kernel, GPU, toolchain and buckets."""

from __future__ import annotations

from dejavu_cache.model.buckets import Bucket
from dejavu_cache.model.scenario import Context

from .output import say_indented

__all__ = ["say_context"]


def say_context(context: Context) -> None:
    """Print a context's kernel, GPU, toolchain and buckets."""
    environment = context.environment
    say_indented(f"{context.kernel.name} (source {context.kernel.source[:8]})", indent=0)
    device = f"{environment.device.name}, {environment.device.arch}"
    toolchain = f"Triton {environment.triton}, {environment.codegen}"
    say_indented(f"on {device}, {toolchain}, {context.problem.method}")
    buckets = [
        f"{name}: {_bucket_text(bucket)}" for name, bucket in context.problem.buckets.items()
    ]
    if buckets:
        say_indented(f"buckets: {'; '.join(buckets)}")


def _bucket_text(bucket: Bucket) -> str:
    values = vars(bucket).items()
    options = [f"{key}={value}" for key, value in values if key != "kind" and value is not None]
    name = type(bucket).__name__
    return f"{name}({', '.join(options)})" if options else name
