"""What the tests of launches share."""

import threading
from typing import Any

import pytest
from triton.runtime.interpreter import GridExecutor


@pytest.fixture(autouse=True)
def interpret_one_launch_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let threads take turns: Triton's interpreter keeps the grid of one launch for all of them."""
    lock, execute = threading.RLock(), GridExecutor.__call__

    def execute_alone(self: Any, *args: Any, **kwargs: Any) -> Any:
        with lock:
            return execute(self, *args, **kwargs)

    monkeypatch.setattr(GridExecutor, "__call__", execute_alone)
