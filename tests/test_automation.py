"""What runs on the project's host: workflows with least permissions, commands that exist, one version everywhere."""

from __future__ import annotations

import re
import shlex
import tomllib
from typing import Any

import pytest
import yaml

from regbench import cli
from tests.helpers.documents import ROOT

WORKFLOWS = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/workflows").glob("*.yml"))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def steps(name: str) -> list[dict[str, Any]]:
    return [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_little_and_pins_major_versions(name: str) -> None:
    content = WORKFLOWS[name]
    assert content["permissions"] == {"contents": "read"}
    more = {job: own["permissions"] for job, own in content["jobs"].items() if "permissions" in own}
    assert more == ({"deploy": {"pages": "write", "id-token": "write"}} if name == "docs" else {})
    assert "pull_request_target" not in content[True]  # YAML reads `on` as true
    assert all("timeout-minutes" in job for job in content["jobs"].values())
    for step in steps(name):
        uses = step.get("uses", "actions/x@v1")
        assert re.fullmatch(r"actions/[a-z-]+@v[0-9]+", uses)
        assert "checkout" not in uses or step["with"]["persist-credentials"] is False
        assert "${{" not in step.get("run", ""), "what others typed reaches a shell by its environment only"


def test_they_run_what_people_run() -> None:
    assert [job["strategy"]["matrix"] for job in WORKFLOWS["ci"]["jobs"].values()] == [
        {"os": ["ubuntu-24.04", "macos-15"], "python": ["3.11", "3.13"]}
    ]
    assert steps("ci")[-1]["run"] == ".ci/run"
    assert "make docs" in [step.get("run") for step in steps("docs")]


@pytest.mark.parametrize(
    "line",
    [line for step in steps("board") for line in step.get("run", "").splitlines() if line.startswith("regbench")],
)
def test_the_commands_of_the_board_are_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They stop at what is not there, and not at an argument."""
    if line == "regbench leaderboard":
        return
    assert cli.main([word.replace("$", "no/such/") for word in shlex.split(line)[1:]]) in (1, 2)
    said = capsys.readouterr().err
    assert "no/such/" in said
    assert "usage" not in said


def test_every_file_names_the_same_versions() -> None:
    version = PROJECT["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    assert f"\n## [{version}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    (hooks,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in (ROOT / "constraints.txt").read_text().splitlines()
