"""Each process writes what it does into a file of its own."""

from __future__ import annotations

from pathlib import Path

from support.processes import run_python

from dejavu_cache.runtime.activity_report import read_events


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = """
        import os
        from dejavu_cache.runtime.activity_report import report_event

        report_event("hit", "parent")
        process = os.fork()
        if process == 0:
            report_event("hit", "child")
            os._exit(0)
        os.waitpid(process, 0)
    """
    run_python(code, DEJAVU_CACHE_REPORT=str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 2
    assert {event.about for event in read_events(tmp_path)} == {"parent", "child"}


def test_the_folder_is_made(tmp_path: Path) -> None:
    code = """
        from dejavu_cache.runtime.activity_report import report_event

        report_event("hit", "here")
    """
    run_python(code, DEJAVU_CACHE_REPORT=str(tmp_path / "new" / "folder"))
    assert [event.about for event in read_events(tmp_path / "new" / "folder")] == ["here"]
