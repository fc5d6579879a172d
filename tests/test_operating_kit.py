"""The operating kit names settings, metrics, paths and commands that the server has.

`make kit` runs the kit itself.
"""

import re
from pathlib import Path

import pytest
from dejavu_service.app import create_app
from dejavu_service.settings import ENVIRONMENT_PREFIX, ServerSettings
from dejavu_service.storage import schema
from dejavu_service.storage.database import Database
from support.checkout import ROOT
from support.service import client_of

KIT = {
    path: path.read_text(encoding="utf-8")
    for path in (*ROOT.glob("deploy/**/*"), ROOT / "compose.yaml", ROOT / "Dockerfile")
    if path.is_file()
}
MONITORING = {
    path: text for path, text in KIT.items() if path.parent.name in ("prometheus", "grafana")
}


@pytest.mark.parametrize("path", KIT, ids=lambda path: path.name)
def test_settings_exist(path: Path) -> None:
    named = set(re.findall(rf"\b{ENVIRONMENT_PREFIX}([A-Z_]+)\b", KIT[path]))
    assert named <= {field.upper() for field in ServerSettings.model_fields}


@pytest.mark.parametrize("dockerfile", ["Dockerfile", "examples/container/Dockerfile"])
def test_what_an_image_copies_is_in_its_context(dockerfile: str) -> None:
    admitted = re.findall(r"^!(\S+)", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / dockerfile).read_text(), re.MULTILINE)
    copied = [source for line in copies for source in line.split()]
    assert len(copied) > 5
    for source in copied:
        assert any(f"{source}/".startswith(f"{path}/") for path in admitted), source


def test_what_others_made_is_pinned_by_its_content() -> None:
    texts = [*KIT.values(), *(path.read_text() for path in ROOT.glob(".github/workflows/*.yml"))]
    text = "\n".join(texts)
    actions = re.findall(r"\buses: (\S+)", text)
    images = re.findall(r"^ *(?:image: |ARG BASE=)(\S+)", text, re.MULTILINE)
    theirs = [image for image in images if "dejavu-cache" not in image]
    assert (len(actions) > 20, len(theirs)) == (True, 5)
    assert [use for use in actions if not re.search(r"@[0-9a-f]{40}$", use)] == []
    assert [image for image in theirs if not re.search(r"@sha256:[0-9a-f]{64}$", image)] == []


def test_every_manifest_is_whole() -> None:
    yaml = pytest.importorskip("yaml")
    manifests = {path: text for path, text in KIT.items() if path.suffix in (".yaml", ".yml")}
    documents = {path: list(yaml.safe_load_all(text)) for path, text in manifests.items()}
    assert len(documents) > 8
    assert all(documents.values())
    (compose,) = documents[ROOT / "compose.yaml"]
    postgres = compose["services"]["postgres"]
    assert set(postgres["environment"]) == {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD"}


def test_metrics_and_probes_exist(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'server.sqlite3'}"
    database = Database(url)
    schema.upgrade(database)
    database.close()
    probes = {
        path for text in KIT.values() for path in re.findall(r"(?:path:|health_uri) (/\w+)", text)
    }
    assert probes == {"/livez", "/readyz", "/metrics"}
    with client_of(create_app(ServerSettings(database=url))) as client:
        for probe in probes:
            assert client.get(probe).status_code == 200
        exposed = client.get("/metrics").text
    metrics = set(re.findall(r"^# TYPE (\w+)", exposed, re.MULTILINE))
    metrics |= {f"{name}_{part}" for name in metrics for part in ("bucket", "sum", "count")}
    named = {
        name for text in MONITORING.values() for name in re.findall(r"\bdejavu_[a-z_]+\b", text)
    }
    assert len(named) >= 5
    assert named <= metrics


def test_every_alert_is_tested_and_explained() -> None:
    rules = KIT[ROOT / "deploy/prometheus/alerts.yaml"]
    tests = KIT[ROOT / "deploy/prometheus/alerts_test.yaml"]
    page = (ROOT / "docs/operating.md").read_text(encoding="utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    assert len(alerts) == 6
    for alert in alerts:
        assert f"alertname: {alert}\n" in tests
        assert f"| `{alert}` |" in page


def test_all_manifests_are_applied_but_those_that_say_so() -> None:
    folder = ROOT / "deploy/kubernetes"
    kustomization = (ROOT / "deploy/kustomization.yaml").read_text()
    listed = re.findall(r"^  - kubernetes/(\S+\.yaml)", kustomization, re.M)
    others = {"first-token.yaml", "service-monitor.yaml"}
    assert set(listed) == {path.name for path in folder.glob("*.yaml")} - others
