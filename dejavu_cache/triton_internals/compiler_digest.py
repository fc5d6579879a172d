"""Compute Triton's digest of its own files while the process waits for something else.

The first compilation of a process needs it, and so does the first look into Triton's cache of
binaries: hundreds of megabytes are read, which takes some 0.4 s. Before that, a program imports its
kernels and asks for its device, and Triton may have to build the module that it does that with.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from threading import Thread

from ..system.background_threads import signals_left_to_others
from .versions import triton_key

__all__ = ["await_digest", "begin_digest", "begin_digest_beside_imports"]

GPU_FILES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")
"""Devices of NVIDIA's driver, of AMD's, and of both under Windows' subsystem for Linux."""

_begun: list[Thread] = []


def begin_digest() -> None:
    """Have a thread compute the digest, once in a process; Triton keeps it."""
    if _begun:
        return
    with suppress(RuntimeError):  # a process may have no thread left, or be at its end
        with signals_left_to_others():
            thread = Thread(target=_compute_digest, name="dejavu-cache digest", daemon=True)
            thread.start()
        _begun.append(thread)


def begin_digest_beside_imports() -> None:
    """Begin before any launch, if a file shows that there is a GPU.

    Nothing asks the driver: that would initialise it, and break programs that fork later.
    """
    if any(os.path.exists(path) for path in GPU_FILES):
        begin_digest()


def await_digest() -> None:
    """Wait for a digest that was begun; before it is there, Triton would compute another."""
    if not sys.is_finalizing():  # a thread that the interpreter has stopped would never end
        for thread in _begun:
            thread.join()


def _compute_digest() -> None:
    with suppress(Exception):  # Triton meets the same error and reports it.
        triton_key()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begun.clear)  # its threads are the parent's
