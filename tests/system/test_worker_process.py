"""The connection to a worker process."""

from __future__ import annotations

import os

import pytest
from pydantic import RootModel

from dejavu_cache.errors import SettingsError
from dejavu_cache.system.worker_process import Worker


def test_a_request_that_cannot_be_written_is_an_error_and_no_silence() -> None:
    """Waiting for the answer to a request that was never sent would take the whole patience."""
    worker = Worker("json.tool", RootModel[str]("\ud800"), os.environ, grace=0.0)
    with pytest.raises(SettingsError, match="surrogates not allowed"):
        worker.start()
