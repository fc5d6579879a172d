"""Errors of signal handlers are the program's, wherever they are raised."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from dejavu_cache.system.background_threads import is_from_signal_handler
from dejavu_cache.tuning.compile_ahead import compile_failure_of


def raise_limit(*_: Any) -> None:
    raise TimeoutError("a limit of the program's own")


class Limit:
    def raise_it(self, *arguments: Any) -> None:
        raise_limit(*arguments)

    def __call__(self, *arguments: Any) -> None:
        raise_limit(*arguments)


@pytest.fixture(autouse=True)
def keep_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    signal.signal(signal.SIGUSR1, before)


def caught(handler: Any) -> BaseException:
    """Return the error that a handler raises."""
    signal.signal(signal.SIGUSR1, handler)
    with pytest.raises(TimeoutError) as error:
        os.kill(os.getpid(), signal.SIGUSR1)
    return error.value


@pytest.mark.parametrize(
    "handler", [raise_limit, Limit().raise_it, Limit(), partial(partial(raise_limit), 1)]
)
def test_an_error_of_any_kind_of_handler_is_told(handler: Any) -> None:
    error = caught(handler)
    assert is_from_signal_handler(error)
    assert compile_failure_of(error) is None, "it is no config's"


def test_an_error_that_triton_raises_from_it_is_told() -> None:
    wrapped = RuntimeError("while it compiled")
    wrapped.__cause__ = caught(raise_limit)
    assert is_from_signal_handler(wrapped)


def test_a_handler_of_any_kind_of_object_is_no_harm() -> None:
    signal.signal(signal.SIGUSR1, Mock())
    assert not is_from_signal_handler(ValueError())


def test_an_error_of_the_same_type_is_not() -> None:
    signal.signal(signal.SIGUSR1, Limit())
    with pytest.raises(TimeoutError) as error:
        raise_limit()
    assert not is_from_signal_handler(error.value)
