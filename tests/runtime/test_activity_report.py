"""Each process writes what it does into a file of its own."""

from __future__ import annotations

from pathlib import Path

from support.processes import run_python

from dejavu_cache.runtime.run_files import read_events


def test_a_forked_process_has_a_file_of_its_own(tmp_path: Path) -> None:
    code = """
        import os
        from dejavu_cache.runtime.run_files import report_event

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


def test_what_cannot_be_written_is_told_by_the_report(tmp_path: Path) -> None:
    """With a full disk, a program whose launches missed would look like one that only hit."""
    code = """
        import resource
        from dejavu_cache.runtime.run_files import report_event

        report_event("hit", "k")
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        report_event("missed", "k")
    """
    run_python(code, DEJAVU_CACHE_REPORT=str(tmp_path))
    events = read_events(tmp_path)
    assert events[0].what == "hit"
    assert {event.what for event in events[1:]} == {"lost"}
    assert all(event.is_unwanted for event in events[1:])


def test_a_report_that_ends_within_a_line_has_lost_an_event(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text('{"what": "hit", "about": "k"}\n{"what": "miss')
    assert [event.what for event in read_events(tmp_path)] == ["hit", "lost"]


def test_the_folder_is_made(tmp_path: Path) -> None:
    code = """
        from dejavu_cache.runtime.run_files import report_event

        report_event("hit", "here")
    """
    run_python(code, DEJAVU_CACHE_REPORT=str(tmp_path / "new" / "folder"))
    assert [event.about for event in read_events(tmp_path / "new" / "folder")] == ["here"]
