"""Least-recently-used cache of answers, bounded by their bytes, and those that are being sent."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from weakref import WeakValueDictionary

__all__ = ["Answer", "AnswerCache", "AnswerKey"]

AnswerKey = tuple[str, str, str]
"""The names of a view, the digest of its context, and the part of it that is read."""

_OVERHEAD = 400
"""Bytes that an entry takes besides its body, roughly."""


@dataclass(frozen=True)
class Answer:
    """A part of a context at one revision.

    Attributes:
        etag: The entity tag of the revision.
        body: JSON; None if the context lacks this part.
        is_gzipped: Whether the body is compressed.
    """

    etag: str
    body: bytes | None
    is_gzipped: bool = True


class AnswerCache:
    """Answers by view, context and part; those unused for longest make room for new ones.

    While an answer is sent, it is found all the same: else each of its slow readers would have a
    copy, and many large ones would fill the memory.
    """

    def __init__(self, size: int) -> None:
        """Keep answers of up to `size` bytes together."""
        self._answers: OrderedDict[AnswerKey, Answer] = OrderedDict()
        self._in_use: WeakValueDictionary[AnswerKey, Answer] = WeakValueDictionary()
        self._free_bytes = size

    def get(self, key: AnswerKey, etag: str) -> Answer | None:
        """Return the answer to a key if it was made at the revision of an entity tag."""
        answer = self._in_use.get(key)
        if answer is None or answer.etag != etag:
            return None
        if key in self._answers:
            self._answers.move_to_end(key)
        return answer

    def put(self, key: AnswerKey, answer: Answer) -> None:
        """Remember an answer."""
        replaced = self._answers.pop(key, None)
        if replaced is not None:
            self._free_bytes += _size(replaced)
        self._answers[key] = self._in_use[key] = answer
        self._free_bytes -= _size(answer)
        while self._free_bytes < 0:
            _, oldest = self._answers.popitem(last=False)
            self._free_bytes += _size(oldest)


def _size(answer: Answer) -> int:
    return _OVERHEAD + len(answer.body or b"")
