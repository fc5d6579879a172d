"""Measurements are written beside the tune, and a store that hangs does not hold it for ever."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
from support.processes import run_python
from support.records import measurement

from dejavu_cache.model.record import Measurement
from dejavu_cache.tuning import tuner
from dejavu_cache.tuning.tuner import MeasurementWriter


def test_a_store_that_hangs_is_left_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tuner, "PATIENCE", 0.1)
    end = threading.Event()

    def hang(measurements: Sequence[Measurement]) -> None:
        end.wait()

    with MeasurementWriter(hang) as writer:
        writer(measurement())
        writer.drain()
    end.set()
    assert "measurements are not written" in caplog.text


def test_an_error_of_the_store_is_raised_at_the_end() -> None:
    def fail(measurements: Sequence[Measurement]) -> None:
        raise OSError("full")

    with pytest.raises(OSError, match="full"), MeasurementWriter(fail) as writer:
        writer(measurement())


def test_no_thread_is_left_where_a_signal_handler_raises_while_it_starts() -> None:
    code = """
        import os, signal, threading
        from types import SimpleNamespace
        from dejavu_cache.tuning.tuner import MeasurementWriter

        class LimitError(Exception):
            pass

        def limit(*_):
            raise LimitError

        def start_and_signal(thread):
            start(thread)
            os.kill(os.getpid(), signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, limit)
        start, threading.Thread.start = threading.Thread.start, start_and_signal
        try:
            with MeasurementWriter(lambda measurements: None) as writer:
                writer(SimpleNamespace(config=None))
        except LimitError:
            print("interrupted")
        for thread in threading.enumerate()[1:]:
            thread.join(240)
        print(threading.active_count())
    """
    assert run_python(code).stdout.split() == ["interrupted", "1"]
