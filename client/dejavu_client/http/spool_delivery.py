"""Send what waits in a spool."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .errors import BusyError, RemoteError, ServerFaultError
from .spool import Spool, SpooledFile
from .uploads import Document, encode, join, parse_record_set_json, upload

__all__ = ["IN_HAND_SECONDS", "Delivery", "deliver_documents", "deliver_spool"]

IN_HAND_SECONDS = 5.0
"""Age up to which a file is left to the process that wrote it and is about to send it."""

BATCH_FILES, BATCH_BYTES = 100, 4 * 2**20
"""Most files, and about the most bytes, that are read at once and sent together."""


@dataclass
class Delivery:
    """What became of a spool's files.

    Attributes:
        sent: how many files the server confirmed altogether.
        set_aside: how many record sets the server refused for good, or are damaged.
        failed: the reasons by file for which files wait although the server answers: it fails on
            them, or they can be neither read nor set aside.
        locked: whether another process is sending the spool.
        undelivered: files that were tried and still wait, unless the server only was busy.
        is_complete: whether the last delivery tried all files that it was to send.
    """

    sent: int = 0
    set_aside: int = 0
    failed: dict[Path, str] = field(default_factory=dict)
    locked: bool = False
    undelivered: set[Path] = field(default_factory=set)
    is_complete: bool = False


def deliver_spool(
    spool: Spool,
    send: Callable[[bytes, int], None],
    *,
    skip: Container[Path] = (),
    should_stop: Callable[[], bool] = lambda: False,
    delivery: Delivery | None = None,
    wait: float = 0.0,
    in_hand: float = IN_HAND_SECONDS,
) -> Delivery:
    """Send a spool's files, the oldest first, and delete those that the server confirms.

    Args:
        spool: the spool.
        send: sends an encoded record set with a number of records.
        skip: files that are left alone.
        should_stop: is asked between requests.
        delivery: where to count, for a caller that wants the counts although an error is raised.
        wait: seconds to wait while another process sends the spool.
        in_hand: files that are younger, in seconds, are left alone.

    Raises:
        RemoteError: the server does not answer, or refuses the sender; the files stay.
        OSError: the spool's folder cannot be written; nothing was sent.
    """
    delivery = delivery or Delivery()
    delivery.is_complete = False
    if not spool.waiting():
        delivery.is_complete = True
        return delivery
    with spool.exclusive(wait) as is_ours:
        delivery.locked = not is_ours
        if not is_ours:
            return delivery
        now = time.time()  # a clock that was put back makes files of the future: not in hand
        files = [
            file
            for file in spool.waiting()
            if file.path not in skip and not now - in_hand < file.written <= now
        ]
        for batch in _batches(files):
            if should_stop():
                break
            _deliver_files(spool, send, batch, delivery)
        else:
            delivery.is_complete = True
    return delivery


def deliver_documents(
    spool: Spool, send: Callable[[bytes, int], None], documents: list[Document]
) -> int:
    """Send record sets, set aside what the server refuses for good, and return how many those are.

    Raises:
        RemoteError: the server does not answer, or refuses the sender.
        OSError: what was refused cannot be written.
    """
    count = 0
    for document in join(documents):
        for refusal in upload(document, send):
            spool.put_aside(encode(refusal.part), str(refusal.error))
            count += 1
    return count


def _batches(files: list[SpooledFile]) -> Iterator[list[Path]]:
    batch: list[Path] = []
    size = 0
    for file in files:
        if batch and (len(batch) == BATCH_FILES or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(file.path)
        size += file.size
    if batch:
        yield batch


def _deliver_files(
    spool: Spool, send: Callable[[bytes, int], None], batch: list[Path], delivery: Delivery
) -> None:
    documents: dict[Path, Document] = {}
    for path in batch:
        try:
            text = spool.read(path)
        except OSError as error:
            delivery.failed[path] = str(error)
            delivery.undelivered.add(path)
            continue
        if text is None:
            continue
        try:
            documents[path] = parse_record_set_json(text)
        except ValueError as error:
            _put_aside(spool, path, text, f"{path.name} is damaged: {error}", delivery)
    try:
        refused = deliver_documents(spool, send, list(documents.values()))
    except (ServerFaultError, RecursionError, OSError) as error:
        if len(documents) == 1:
            delivery.failed.update({path: str(error) for path in documents})
            delivery.undelivered.update(documents)
            return
        # One of them makes the server fail, is nested too deeply, or is refused and cannot be set
        # aside; the others do not wait for it.
        for path in documents:
            _deliver_files(spool, send, [path], delivery)
        return
    except BusyError:
        raise
    except RemoteError:
        delivery.undelivered.update(documents)
        raise
    # Counted first: who finds the spool empty reads the counts.
    delivery.set_aside += refused
    delivery.sent += max(len(documents) - refused, 0)
    for path in documents:
        spool.remove(path)


def _put_aside(spool: Spool, path: Path, text: bytes, reason: str, delivery: Delivery) -> None:
    """Set a damaged file aside; one that cannot be moved there waits where it is."""
    try:
        spool.put_aside(text, reason)
    except OSError as error:
        delivery.failed[path] = str(error)
        return
    delivery.set_aside += 1
    spool.remove(path)
