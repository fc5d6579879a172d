"""Read the body of an answer, which may be compressed, without trusting its length."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator

from .errors import NonsenseError

__all__ = ["ACCEPTED_ENCODING", "decode_body"]

ACCEPTED_ENCODING = "gzip"
"""Value of the header `Accept-Encoding`, and the only encoding that is decompressed."""

_GZIP_WINDOW = 31
"""What `zlib` calls a gzip stream with a window of any size."""

_PIECE_BYTES = 2**20
"""Most bytes to which compressed data is expanded at once."""


def decode_body(chunks: Iterable[bytes], encoding: str, url: str) -> Iterator[bytes]:
    """Yield a body as it was before its compression, in pieces of bounded size.

    Args:
        chunks: the body as it came over the network.
        encoding: the answer's `Content-Encoding`; empty if it has none.
        url: the server's URL, for errors.

    Raises:
        NonsenseError: the body has another encoding than gzip, or is not exactly one gzip stream.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        yield from chunks
    elif encoding == ACCEPTED_ENCODING:
        yield from _decompress(chunks, url)
    else:
        raise NonsenseError(f"{url} sent a body with the encoding {encoding[:80]!r}")


def _decompress(chunks: Iterable[bytes], url: str) -> Iterator[bytes]:
    stream = zlib.decompressobj(_GZIP_WINDOW)
    is_empty = True  # as the body of a 304 is, whatever its headers say
    for chunk in chunks:
        rest = chunk
        while rest:
            is_empty = False
            if stream.eof:
                raise NonsenseError(f"{url} sent more than one gzip stream")
            try:
                piece = stream.decompress(rest, _PIECE_BYTES)
            except zlib.error as error:
                raise NonsenseError(f"{url} sent a damaged gzip stream: {error}") from None
            yield piece
            rest = stream.unconsumed_tail or stream.unused_data
    if not (is_empty or stream.eof):
        raise NonsenseError(f"{url} sent an incomplete gzip stream")
