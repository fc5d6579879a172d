"""A sweep keeps measurements until the server has them, and names those it refused."""

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from dejavu_client.http.protocol_client import ProtocolClient
from dejavu_client.http.remote_store import RemoteStore
from dejavu_client.http.sender import Spool
from support.processes import PROGRAMS, dejavu, fork_program
from support.records import MOMENT
from support.service import Running
from support.sweeping import Sweeps
from triton import Config

from dejavu_cache.model.record import Measurement, Record
from dejavu_cache.model.scenario import Scenario
from dejavu_cache.model.worth import MissCount
from dejavu_cache.triton_internals.config_names import describe


@pytest.fixture
def sweeps(tmp_path: Path) -> Sweeps:
    return Sweeps(tmp_path)


def patient(url: str, folder: Path) -> RemoteStore:
    """Return a client of the server's store that waits long enough for a busy machine."""
    return RemoteStore(ProtocolClient(url), wait=30, spool=Spool(url, folder / "spool"))


def journals(sweeps: Sweeps) -> list[Path]:
    """Return the folders of journals that have records."""
    folder = sweeps.folder / "cache" / "dejavu-cache" / "sweeps"
    return sorted({folder / path.relative_to(folder).parts[0] for path in folder.rglob("*.json")})


def test_a_server_that_goes_away_costs_nothing(server: Running, sweeps: Sweeps) -> None:
    process = sweeps.start("--store", server.base, BENCH_SECONDS="0.1")
    sweeps.wait_for(6)
    server.kill()
    out, err = process.communicate(timeout=240)
    (journal,) = journals(sweeps)
    assert process.returncode == 1, out + err
    assert f"{journal} waits for the next sweep" in err
    server.start()
    assert "0 configs measured" in sweeps.run("--store", server.base)
    with patient(server.base, sweeps.folder) as store:
        assert sweeps.recorded_in(store) == sweeps.whole()
    assert Counter(sweeps.measurements_taken).most_common(1)[0][1] == 1
    assert journals(sweeps) == []


def test_a_server_that_is_away_is_not_called_the_place_of_the_records(sweeps: Sweeps) -> None:
    nowhere = ("--store", "http://127.0.0.1:9", "--option", "cases=2")
    out = sweeps.run(*nowhere, code=1)
    assert "records are in http://127.0.0.1:9" not in out
    assert f"{journals(sweeps)[0]} waits for the next sweep" in out
    assert "0 configs measured" in sweeps.run(*nowhere, code=1)
    assert len(sweeps.measurements_taken) == 8
    (journal,) = journals(sweeps)
    assert sweeps.json(*nowhere, code=1)["kept"] == [str(journal)]


def test_a_folder_before_a_server_does_not_stand_in_for_it(server: Running, sweeps: Sweeps) -> None:
    both = ("--store", f"{sweeps.store},{server.base}", "--option", "cases=2")
    server.kill()
    assert "waits for the next sweep" in sweeps.run(*both, code=1)
    assert sweeps.recorded_times == sweeps.whole(2)
    server.start()
    assert "0 configs measured" in sweeps.run(*both)
    with patient(server.base, sweeps.folder) as store:
        assert sweeps.recorded_in(store) == sweeps.whole(2)


def setting(folder: Path, url: str) -> dict[str, str]:
    """Return the environment of programs and sweeps, and put their suite into the folder."""
    shutil.copy(PROGRAMS / "missed_additions.py", folder / "met.py")
    return {
        "TRITON_INTERPRET": "1",
        "DEJAVU_CACHE_URL": url,
        "DEJAVU_CACHE_WAIT": "10",
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": str(folder),
    }


def launch(*sizes: str, **env: str) -> None:
    fork_program("launch_missed_additions.py", *sizes, DEJAVU_CACHE_MODE="reuse", **env)


def sweep_misses(env: dict[str, str], suite: str, code: int = 0) -> str:
    store = env["DEJAVU_CACHE_URL"]
    done = dejavu("sweep", suite, "--from-misses", "--store", store, **env)
    assert done.returncode == code, done
    return done.stdout


def test_only_what_programs_missed_is_tuned(server: Running, tmp_path: Path) -> None:
    env = setting(tmp_path, server.base)
    launch("200", "300", **env)
    output = sweep_misses(env, "met")
    assert "2 cases tuned, 4 configs measured" in output
    assert "0 were there already" in output
    assert "1 nobody asked for" in output
    shown = dejavu("show", "add_one", "--store", server.base, **env).stdout
    sizes = [line.partition("\t")[0] for line in shown.splitlines() if "\t" in line]
    assert sizes == ["n", "200", "300"]
    assert "0 cases tuned" in sweep_misses(env, "met")


def test_a_sweep_leaves_out_what_is_not_worth_a_tune(server: Running, tmp_path: Path) -> None:
    env, into = setting(tmp_path, server.base), ("--store", server.base)
    launch("300", "500", **env)
    with patient(server.base, tmp_path) as store:
        assert isinstance(store, RemoteStore)
        for miss in store.client.misses("met.add_one"):
            near = Scenario(args={"n": 400}, dtypes=miss.scenario.dtypes)
            times = tuple(
                Measurement(config=describe(config), median=median, at=MOMENT, seconds=1.0)
                for config, median in ((Config({"BLOCK": 16}), 2.0), (Config({"BLOCK": 32}), 1.0))
            )
            store.put(miss.context, [Record(scenario=near, measurements=times)])
            if miss.scenario.args["n"] == 500:
                store.miss(miss.context, miss.scenario, MissCount(10**6 - 2))
    launch("500", **env)
    with patient(server.base, tmp_path) as store:
        assert isinstance(store, RemoteStore)
        first, second = store.client.misses("met.add_one")
        assert first.worth.saves == pytest.approx(1e3, rel=0.1)
        assert second.worth.saves is None, "nothing was known when it was launched"
    planned = dejavu("sweep", "met", "--from-misses", "--dry-run", *into, **env).stdout
    most, least = planned.splitlines()[:2]
    assert re.search(r"n=500.*: 1000000 launches would have saved 9\d\d s .*tune takes 2 s", most)
    assert re.search(r"n=300: not tuned: .*: 1 launch would have saved 0\.00098 s ", least)
    done = dejavu("sweep", "met", "--worth", "10m", *into, **env).stdout
    assert re.search("n=300: not worth a tune: .*: 1 launch would have saved", done)
    assert re.search(r"n=500: tuned: .* would have saved .* s; predicted was 9\d\d s", done)


@pytest.mark.parametrize(
    ("sizes", "suite", "said"),
    [
        (("200", "300", "500"), "met:fixed", "2 misses have no case here"),
        (("300", "400"), "met", "1 miss has no case here"),
    ],
    ids=["no case", "a case that raises"],
)
def test_a_miss_without_a_case_is_told_and_costs_no_other(
    sizes: tuple[str, ...], suite: str, said: str, server: Running, tmp_path: Path
) -> None:
    env = setting(tmp_path, server.base)
    launch(*sizes, **env)
    output = sweep_misses(env, suite, code=1)
    assert "1 case tuned" in output
    assert said in output
