"""`doctor` finds what is wrong, and says how to repair it."""

import json
from pathlib import Path

from support.command_line import full_disk, run_cli
from support.records import context

from dejavu_cache.stores import FileStore


class TestDoctor:
    def test_a_sound_store_is_ok(self, store: FileStore) -> None:
        out = run_cli("doctor", "--store", store.root)
        assert out.returncode == 0, out.stdout
        assert "1 context, 2 records" in out.stdout

    def test_findings_of_a_sound_store_are_no_errors_in_json(self, store: FileStore) -> None:
        findings = json.loads(run_cli("doctor", "--store", store.root, "--json").stdout)
        assert {finding["state"] for finding in findings} <= {"ok", "note"}

    def test_unknown_and_senseless_settings_are_found(self) -> None:
        out = run_cli("doctor", DEJAVU_CACHE_MOOD="good", DEJAVU_CACHE_MODE="sometimes")
        assert out.returncode == 1
        assert "DEJAVU_CACHE_MOOD is set, and no such setting exists" in out.stdout
        assert "DEJAVU_CACHE_MODE='sometimes'" in out.stdout

    def test_damaged_and_newer_files_are_found(self, store: FileStore) -> None:
        path = store.path(context())
        path.with_name("x.json").write_text(path.read_text().replace('"format": 2', '"format": 99'))
        path.with_name("y.json.damaged-1").write_text("?")
        out = run_cli("doctor", "--store", store.root)
        assert out.returncode == 1
        assert "upgrade dejavu-cache" in out.stdout
        assert "was damaged; mend it" in out.stdout

    def test_a_store_without_room_is_not_one_without_access(self, store: FileStore) -> None:
        """Its remedy is that of a command which cannot write."""
        with full_disk():
            out = run_cli("doctor", "--store", store.root)
        assert out.returncode == 1
        assert "File too large; delete records that are not needed" in out.stdout
        assert f"make {store.root} writable" not in out.stdout

    def test_a_store_that_cannot_be_made_is_found(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        out = run_cli("doctor", DEJAVU_CACHE_URL=str(tmp_path / "file" / "store"))
        assert (out.returncode, "cannot be" in out.stdout) == (1, True)
