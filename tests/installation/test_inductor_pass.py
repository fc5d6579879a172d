"""Inductor takes recorded configs, and benchmarks the others as before."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.processes import fork_program, fork_python

from dejavu_cache.installation.inductor_pass import install_inductor_pass, uninstall_inductor_pass
from dejavu_cache.settings import current_settings


def test_a_recorded_config_takes_the_place_of_all(tmp_path: Path) -> None:
    seen = fork_program(
        "compile_tuned_kernel.py",
        TRITON_INTERPRET="0",
        DEJAVU_CACHE_SHIPPED="0",
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path),
    )
    assert seen.stdout.splitlines() == [
        "tuned [('128', '2')]", "symbolic, bucket [('128', '2')]", "symbolic, exact 4", "untuned 4",
        "operator [('128', '2')]", "exported [('128', '2')]", "packaged [(128, 2)] [(128, 2)]",
        "packaged, symbolic, bucket [(128, 2)]", "packaged, symbolic, exact 4", "data-dependent []",
        "thread [('128', '2')]", "exported launch [(128, True)]", "first compiled [('128', '2')]",
        "again cached [('128', '2')]", "pinned compiled [('64', '4')]",
        "pinned, again cached [('64', '4')]", "deleted compiled 4", "deleted, again cached 4",
        "uninstalled 4 4", "benchmarked 0",
    ]  # fmt: skip


def test_the_pass_is_added_when_inductor_is_imported_and_not_before() -> None:
    code = """
        import sys, dejavu_cache
        dejavu_cache.install()
        assert "torch._inductor.config" not in sys.modules
        import torch._inductor.config as config
        print(type(config.post_grad_custom_pre_pass).__name__)
        dejavu_cache.uninstall()
        from dejavu_cache.installation import inductor_pass
        print(inductor_pass._is_wanted)
    """
    printed = fork_python(code, TRITON_INTERPRET="0").stdout
    assert printed.splitlines() == ["RecordedConfigPass", "False"]


Install = Callable[[Any], Any]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs the pass beside a program's own, and returns Inductor's."""
    import torch._inductor.config as config

    def install_beside(own: Any) -> Any:
        monkeypatch.setattr(config, "post_grad_custom_pre_pass", own, raising=False)
        install_inductor_pass()
        install_inductor_pass()
        return config.post_grad_custom_pre_pass

    yield install_beside
    uninstall_inductor_pass()


def test_a_programs_own_pass_stays(install: Install) -> None:
    import torch.fx

    passed: list[Any] = []
    graph, graph_pass = torch.fx.Graph(), install(passed.append)
    graph_pass(graph)
    uninstall_inductor_pass()
    graph_pass(graph)
    assert passed == [graph, graph]


def test_a_programs_pass_hears_whether_it_is_for_inference(install: Install) -> None:
    pytest.importorskip("torch", "2.13", "torch 2.10 has no such pass")
    import torch.fx
    from torch._inductor import custom_graph_pass

    heard: list[bool] = []

    class Own(custom_graph_pass.CustomInferenceAwareGraphPass):
        def __call__(self, graph: Any, is_inference: bool) -> None:
            heard.append(is_inference)

        def uuid(self) -> str:
            return "own"

    both = install(Own())
    assert isinstance(both, custom_graph_pass.CustomInferenceAwareGraphPass)
    both(torch.fx.Graph(), is_inference=True)
    both(torch.fx.Graph(), False)
    assert heard == [True, False]


def test_inductors_cache_tells_namespaces_apart(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph_pass, seen = install(None), set()
    for name in ("main", "pr-1", "main"):
        monkeypatch.setenv("DEJAVU_CACHE_NAMESPACE", name)
        current_settings.cache_clear()
        seen.add(graph_pass.uuid())
    assert len(seen - {None}) == 2


def test_inductor_caches_no_graph_where_its_notes_cannot_be_read(
    install: Install,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    graph_pass, notes = install(None), tmp_path / "dejavu-cache-choices.jsonl"
    uuid = graph_pass.uuid()
    assert uuid is not None
    notes.write_text("no note\n")
    assert graph_pass.uuid() not in (uuid, None)
    notes.unlink()
    notes.mkdir()
    assert graph_pass.uuid() is None
    assert "Is a directory" in caplog.text
