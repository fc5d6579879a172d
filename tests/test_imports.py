"""Importing the library is light, and it works where Triton is not installed."""

from __future__ import annotations

import json

from support.processes import run_python


def test_importing_the_library_loads_nothing_heavy() -> None:
    code = """
        import json, sys
        import dejavu_cache
        heavy = ("torch", "triton", "httpx", "sqlalchemy", "pydantic")
        print(json.dumps([name for name in heavy if name in sys.modules]))
    """
    assert json.loads(run_python(code).stdout) == []


def test_records_and_stores_need_no_triton() -> None:
    code = """
        import sys
        for name in ("torch", "triton", "httpx", "sqlalchemy"):
            sys.modules[name] = None
        import dejavu_cache, dejavu_cache.model.record, dejavu_cache.model.selection
        from dejavu_cache import Pow2, Settings, open_store
        import dejavu_cache.sweep.ray_hosts, dejavu_cache.sweep.runner, dejavu_cache.sweep.suite
        assert list(open_store("memory://").contexts()) == []
    """
    run_python(code)


def test_every_public_name_is_there() -> None:
    import dejavu_cache

    for name in dejavu_cache.__all__:
        assert getattr(dejavu_cache, name) is not None
    assert set(dir(dejavu_cache)) >= set(dejavu_cache.__all__)
