"""Prometheus' own promtool tests the alerts: each fires for its fault, and for no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
TESTS = Path(__file__).with_name("rules.test.yaml")
RUNBOOKS = ROOT / "docs" / "operating" / "runbooks"
GROUPS = yaml.safe_load(RULES.read_text())["groups"]
TEMPLATE = re.compile(r"\{\{.*?\}\}")
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"]}


@pytest.fixture(scope="module")
def promtool(program: Path) -> Path:
    """Return the path of promtool, which comes with Prometheus."""
    return program.with_name("promtool")


def check(promtool: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([promtool, *args], capture_output=True, text=True, check=False)


def without_words(rules: str) -> str:
    """Return the rules with what is filled into each annotation, without the words around it."""
    document = yaml.safe_load(rules)
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        told = rule.get("annotations", {})
        for name in {"summary", "description"} & set(told):
            told[name] = " ".join(TEMPLATE.findall(told[name]))
    text: str = yaml.safe_dump(document)
    return text


def play(promtool: Path, folder: Path, rules: str) -> subprocess.CompletedProcess[str]:
    """Run the tests of the alerts against these rules."""
    (folder / "rules.yaml").write_text(without_words(rules))
    tests = folder / "rules.test.yaml"
    tests.write_text(TESTS.read_text().replace("RULES", str(folder / "rules.yaml")))
    return check(promtool, "test", "rules", str(tests))


def change_all(**fields: Any) -> str:
    """Return the rules with fields of every alert changed."""
    document = yaml.safe_load(RULES.read_text())
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.update(fields)
    text: str = yaml.safe_dump(document)
    return text


def test_the_rules_are_what_prometheus_takes(promtool: Path) -> None:
    done = check(promtool, "check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_fires_for_what_it_is_for_alone(promtool: Path, tmp_path: Path) -> None:
    done = play(promtool, tmp_path, RULES.read_text())
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"expr": "vector(0) > 1"}, id="never fires"),
        pytest.param({"for": "0s"}, id="does not wait"),
    ],
)
def test_an_alert_that_is_wrong_is_noticed(
    fields: dict[str, str], promtool: Path, tmp_path: Path
) -> None:
    done = play(promtool, tmp_path, change_all(**fields))
    assert done.returncode == 1
    failed = set(re.findall(r"alertname: (\w+)", done.stdout + done.stderr))
    assert failed == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_has_a_severity_and_links_to_its_runbook(alert: str) -> None:
    rule = ALERTS[alert]
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"] == {"severity": rule["labels"]["severity"]}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page = RUNBOOKS / rule["annotations"]["runbook_url"].rpartition("/")[2]
    assert alert in page.read_text()


def test_every_runbook_is_of_an_alert() -> None:
    pages = {rule["annotations"]["runbook_url"].rpartition("/")[2] for rule in ALERTS.values()}
    assert {path.name for path in RUNBOOKS.glob("*.md")} == pages
