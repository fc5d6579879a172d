"""Search a file by blocks, with a bound on what is read.

A file in a shared folder may be replaced, cut or made longer by others while it is searched. In
memory that is mapped to it, a cut ends the process by a signal; a read only returns less.
"""

from __future__ import annotations

import os

__all__ = ["FileBlocks"]

_BLOCK = 1 << 13
"""Bytes of the first read of a search; each further one is twice as long."""

_MOST_BYTES = 1 << 27
"""Bytes that a search reads at most. A file of a million records takes twenty steps."""


class FileBlocks:
    """An open file, as long as it was when it was opened here.

    `read`, `find` and `rfind` raise `ValueError` if the file has become shorter, or if more than
    `_MOST_BYTES` bytes of it are read.
    """

    def __init__(self, handle: int) -> None:
        """Look at an open file; the caller closes it."""
        self._handle = handle
        self._length = os.fstat(handle).st_size
        self._left = _MOST_BYTES

    def __len__(self) -> int:
        """Return the file's length in bytes."""
        return self._length

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range."""
        self._left -= stop - start
        if self._left < 0:
            raise ValueError("too much of the file was read")
        content = os.pread(self._handle, stop - start, start)
        if len(content) != stop - start:
            raise ValueError("the file has become shorter")
        return content

    def find(self, text: bytes, start: int, stop: int) -> int:
        """Return where a text first lies in a range, or -1."""
        size = _BLOCK
        while stop - start >= len(text):
            block = self.read(start, min(start + size, stop))
            found = block.find(text)
            if found >= 0:
                return start + found
            start += len(block) - len(text) + 1
            size *= 2
        return -1

    def rfind(self, text: bytes, start: int, stop: int) -> int:
        """Return where a text last lies in a range, or -1."""
        size = _BLOCK
        while stop - start >= len(text):
            begin = max(stop - size, start)
            found = self.read(begin, stop).rfind(text)
            if found >= 0:
                return begin + found
            stop = begin + len(text) - 1 if begin > start else start
            size *= 2
        return -1
