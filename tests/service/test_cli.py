"""The commands."""

import re
import shlex
import socket
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
import typer
from dejavu_service import app as service
from dejavu_service.cli import register
from dejavu_service.services import tokens
from dejavu_service.settings import ServerSettings, read_settings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from support.processes import dejavu
from support.service import free_port, running_server
from typer.testing import CliRunner

from dejavu_cache.errors import ExitCode, SettingsError

app = typer.Typer()
register(app)


def run(url: str, line: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*shlex.split(line), "--database", url])
    return done.exit_code, done.output


def test_a_first_token_that_cannot_be_issued_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start is not refused for an empty file."""
    settings = read_settings({"database": f"sqlite:///{tmp_path}/records.db"})
    database = Database(settings.database)
    schema.upgrade(database)
    monkeypatch.setattr(tokens, "issue", Mock(side_effect=OSError("the database is away")))
    with pytest.raises(SettingsError, match="is away"):
        service.prepare(settings, database)
    assert not list(tmp_path.glob("*.token"))
    database.close()


def test_tokens_are_made_listed_and_revoked(empty_url: str) -> None:
    run_on = partial(run, empty_url)
    assert run_on("db upgrade")[0] == 0
    options = "--role write --namespace pr-1 --days 30"
    code, said = run_on(f"token create --name ci\u202e\x9b2J {options}")
    assert code == 0
    (secret,) = [line for line in said.splitlines() if line.startswith("dejavu_")]
    identity = secret.split("_")[1]
    listed = run_on("token list")[1]
    assert identity in listed
    assert "pr-1" in listed
    assert r"ci\u202e\u009b2J" in listed, "a name moves no cursor"
    assert secret.split("_", 2)[2] not in listed
    assert run_on(f"token revoke {identity}")[0] == 0
    assert "revoked" in run_on("token list")[1]
    code, said = run_on(f"token revoke {identity}")
    assert code == 1
    assert "no token" in said


def test_a_public_address_needs_tokens(sqlite_url: str) -> None:
    code, said = run(sqlite_url, "serve --host 0.0.0.0")
    assert code == ExitCode.USAGE
    (hint,) = re.findall("run  dejavu-cache (.*)", said)
    assert CliRunner().invoke(app, shlex.split(hint)).exit_code == 0
    opened = Database(sqlite_url)
    assert [token.name for token in tokens.list_tokens(opened)] == ["ops"]
    opened.close()


def test_the_hint_masks_a_password() -> None:
    opened = Database("postgresql://me:secret@db/x")
    assert "me:***@db/x" in opened.option
    opened.close()


@pytest.mark.usefixtures("next_version")
@pytest.mark.parametrize("line", ["serve", "db prune --unused-days 1"])
def test_a_stale_postgres_is_left_alone_and_what_to_run_is_said(
    postgres_url: str, line: str
) -> None:
    code, said = run(postgres_url, line)
    assert code == ExitCode.UNUSABLE
    assert "dejavu-cache db upgrade" in said


def test_settings_come_from_one_place(caplog: pytest.LogCaptureFixture) -> None:
    settings = read_settings(
        {"port": 1, "host": None},
        {"DEJAVU_SERVER_HOST": "::1", "DEJAVU_SERVER_PORT": "2", "X": "3"},
    )
    assert (settings.host, settings.port) == ("::1", 1)
    assert read_settings({}, {"DEJAVU_SERVER_MAX_CONCURRENT_REQUESTS": ""}) == ServerSettings()
    with pytest.raises(SettingsError, match="DEJAVU_SERVER_PORT"):
        read_settings({}, {"DEJAVU_SERVER_PORT": "x"})
    assert not caplog.records
    assert read_settings({}, {"DEJAVU_SERVER_SPEED": "1"}) == ServerSettings()
    assert "DEJAVU_SERVER_SPEED" in caplog.text


def test_prune_says_what_went(sqlite_url: str) -> None:
    assert run(sqlite_url, "db prune --unused-days 30") == (
        0,
        "Deleted 0 records, 0 misses and 0 empty contexts.\n",
    )


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_port_that_is_in_use_ends_the_start(sqlite_url: str, has_tokens: bool) -> None:
    """It is said before whether the server answers without a token."""
    if has_tokens:
        run(sqlite_url, "token create --name ops --role admin")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = dejavu("serve", "--port", port, "--without-tokens", "--database", sqlite_url)
    assert done.returncode == ExitCode.UNUSABLE
    assert ("--without-tokens has no effect" in done.stderr) == has_tokens
    assert ("answers this machine only, and everybody on it" in done.stderr) != has_tokens
    assert f"('127.0.0.1', {port}): address already in use" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_first_start_makes_a_token_in_a_file(tmp_path: Path) -> None:
    """Also where its folder is not there yet."""
    database = f"sqlite:///{tmp_path / 'new' / 'own.sqlite3'}"
    tokenless = {"DEJAVU_SERVER_WITHOUT_TOKENS": ""}
    log, file = tmp_path / "log", tmp_path / "new" / "own.sqlite3.token"
    with running_server(database, log, tokenless) as server:
        token = file.read_text().strip()
        assert file.stat().st_mode & 0o777 == 0o600
        contexts = f"{server.base}/v1/main/contexts"
        assert httpx.get(contexts).status_code == 401
        headers = {"Authorization": f"Bearer {token}"}
        assert httpx.get(contexts, headers=headers).status_code == 200
    with running_server(database, log, tokenless):
        assert file.read_text().strip() == token
    assert token not in log.read_text()


def test_a_token_file_of_another_server_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "own.sqlite3.token"
    file.write_text("another")
    code, said = run(f"sqlite:///{tmp_path / 'own.sqlite3'}", f"serve --port {free_port()}")
    assert code == 2
    assert "DEJAVU_SERVER_FIRST_TOKEN_FILE" in said
    assert file.read_text() == "another"


TYPO = "sqlite:///{folder}/new/typo.sqlite3"
REFUSED = [
    ("token create --name ci --role owner", TYPO, ExitCode.USAGE, "grants *: Input should be"),
    ("token create --name ci --namespace ../x", TYPO, ExitCode.USAGE, "grants ../x: "),
    ("token create --name ci --days 99999", TYPO, ExitCode.USAGE, "days: "),
    ("token list", "x", ExitCode.USAGE, "sqlite:///FILE or postgresql://"),
    ("token list", "mysql://a/b", ExitCode.USAGE, "sqlite:///FILE or postgresql://"),
    ("token list", "sqlite://", ExitCode.USAGE, "sqlite:///FILE or postgresql://"),
    ("token list", "sqlite:///:memory:", ExitCode.USAGE, "sqlite:///FILE or"),
    ("db prune --unused-days 9", TYPO, ExitCode.UNUSABLE, "typo.sqlite3"),
    ("token list", TYPO, ExitCode.UNUSABLE, "typo.sqlite3"),
    ("serve", "postgresql://nobody:S3CRET@127.0.0.1:1/x", ExitCode.UNUSABLE, "127.0.0.1"),
    ("serve", "mysql://u:S3CRET@db/x", ExitCode.USAGE, "postgresql://"),
    ("serve", "sqlite://u:S3CRET@/x", ExitCode.USAGE, "postgresql://"),
    ("serve", "u:S3CRET@x", ExitCode.USAGE, "postgresql://"),
    ("serve", "sqlite:///{folder}/byte", ExitCode.UNUSABLE, "byte is no database"),
]


@pytest.mark.parametrize(("line", "url", "code", "named"), REFUSED)
def test_what_cannot_be_done_is_said_without_secrets(
    sqlite_url: str, tmp_path: Path, line: str, url: str, code: int, named: str
) -> None:
    (tmp_path / "byte").write_text("x")
    ended, said = run(url.format(folder=tmp_path) or sqlite_url, line)
    assert (ended, named in said) == (code, True), said
    assert "S3CRET" not in said
    assert "dejavu_" not in said, "no token is made"
    assert not (tmp_path / "new").exists(), "and no file"
