"""What a finished seed was made from: written, compared, and refused where it differs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from regbench.results import Code
from regbench.training import provenance
from regbench.training.provenance import (
    FILE,
    WORDS,
    check_provenance,
    code_of,
    describe_code,
    note_code,
    packages_of,
)
from regbench.utils.errors import UserError
from regbench.utils.files import write_json

PARTS = {"track": "t", "source": "s", "options": {"sizes": (1, 2)}, "training": {}, "device": "cpu", "backend": "auto"}


def test_the_same_parts_pass(tmp_path: Path) -> None:
    write_json(tmp_path / FILE, PARTS)
    check_provenance(tmp_path, dict(reversed(PARTS.items())))


@pytest.mark.parametrize("key", WORDS)
def test_a_part_that_differs_is_named(tmp_path: Path, key: str) -> None:
    write_json(tmp_path / FILE, PARTS)
    with pytest.raises(UserError, match=f"has begun before {WORDS[key]} changed, .* undo the change, or begin anew"):
        check_provenance(tmp_path, {**PARTS, key: "other"})
    write_json(tmp_path / FILE, {**PARTS, key: "other"})
    with pytest.raises(UserError, match=f"has begun before {WORDS[key]} changed"):
        check_provenance(tmp_path, PARTS)


def test_what_cannot_be_read_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    with pytest.raises(UserError, match="has begun before something changed"):
        check_provenance(tmp_path, PARTS)


def test_the_code_is_a_commit_and_whether_its_packages_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is said where this source is in no repository, or in one that does not track it."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    source, mixer, entry = (tmp_path / path for path in ("regbench/a.py", "architectures/b.py", "leaderboard/c.json"))
    unknown = Code(commit=None, dirty=None)
    for path in (source, mixer, entry):
        path.parent.mkdir()
        path.write_text("x = 1\n")
    monkeypatch.setattr(provenance, "_FOLDER", source.parent)
    monkeypatch.setattr(provenance, "__file__", str(source))
    assert describe_code() == unknown
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "x")
    assert describe_code() == unknown
    git("add", ".")
    git("commit", "-q", "-m", "y")
    (source.parent / "untracked").write_text("")
    entry.write_text("x = 2\n")
    assert describe_code() == Code(commit=git("rev-parse", "HEAD"), dirty=False)
    first = describe_code()
    forgotten = mixer.parent / "new" / "mixer.py"
    forgotten.parent.mkdir()
    forgotten.write_text("")
    assert describe_code().dirty, "the commit lacks it"
    forgotten.unlink()
    seeds = [tmp_path / f"seed-{seed}" for seed in (0, 1)]
    for seed in seeds:
        seed.mkdir()
        note_code(seed, first, afresh=True)
    assert code_of(seeds, first) == first
    entry.write_text("x = 3\n")
    git("commit", "-q", "-a", "-m", "an entry")
    assert code_of(seeds, describe_code()) == first, "of a file that decides no score"
    source.write_text("x = 3\n")
    git("commit", "-q", "-a", "-m", "code")
    assert code_of(seeds, describe_code()) == Code(commit=git("rev-parse", "HEAD"), dirty=True), "of two codes"
    note_code(seeds[0], describe_code(), afresh=False)
    assert code_of(seeds, first).dirty
    for seed in seeds:
        note_code(seed, describe_code(), afresh=True)
    assert code_of(seeds, describe_code()) == describe_code()
    source.write_text("x = 1\n")
    git("commit", "-q", "-a", "-m", "as it was")
    for changed in (source, mixer):
        changed.write_text("x = 2\n")
        assert describe_code() == Code(commit=git("rev-parse", "HEAD"), dirty=True)
        changed.write_text("x = 1\n")


def test_packages_that_changed_between_seeds_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, seeds = Code(commit=None, dirty=None), [tmp_path / "seed-0", tmp_path / "seed-1"]
    for seed, torch_version, more in zip(seeds, ("2.11.0", "2.13.0"), ({}, {"triton": "3.6"}), strict=True):
        seed.mkdir()
        monkeypatch.setattr(provenance, "versions", lambda v=torch_version, m=more: {"torch": v, "numpy": "2.4"} | m)
        note_code(seed, code, afresh=True)
    assert packages_of(seeds) == {"torch": "2.11.0 and 2.13.0", "numpy": "2.4", "triton": "none and 3.6"}
    assert packages_of(seeds[1:]) == {"torch": "2.13.0", "numpy": "2.4", "triton": "3.6"}
    note_code(seeds[0], code, afresh=False)
    assert packages_of(seeds[:1])["torch"] == "2.11.0 and 2.13.0"
