"""An entry's command run again: the same to the bit here, within noise elsewhere, and another where it is another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import regbench
from regbench import cli
from regbench.leaderboard.reproduce import compare_runs, reproduce
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import read_evidence, write_evidence
from regbench.leaderboard.verify import verify_entry
from regbench.utils.errors import UserError
from tests.leaderboard.conftest import SETTINGS, Made


def test_the_command_of_an_entry_gives_its_scores_again(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "again"
    arguments = ["reproduce", str(lstm.path), "--track", str(tiny_file), "--out", str(out)]
    assert cli.main([*arguments, "--seed", "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert "predictions the same to the bit: seeds 1, 2; what differs above is the entry" in printed.replace("\n", " ")
    assert printed.count("the same") == 1 + len(lstm.entry.result.metrics)
    assert cli.main([*arguments, "--seed", "1", "2"]) == 0, "a finished one is compared again"
    config = (out / "config.yaml").read_text()
    changes = (("trials: 2", "trials: 3"), ("backend: auto", "backend: naive"), (str(tiny_file), "pfa-small-v1"))
    for then, now in changes:
        (out / "config.yaml").write_text(config.replace(then, now))
        assert cli.main([*arguments, "--seed", "1", "2"]) == 2, now
        assert "holds another run" in capsys.readouterr().err
    (out / "config.yaml").write_text(config)
    assert cli.main(arguments) == 2, "other seeds"
    assert "holds another run" in capsys.readouterr().err


def test_all_seeds_by_somebody_make_an_entry_reproduced(lstm: Made, tiny_file: Path, tmp_path: Path) -> None:
    board = tmp_path / "board"
    shutil.copytree(lstm.board, board)
    path = board / lstm.path.relative_to(lstm.board)
    arguments = ["reproduce", str(path), "--track", str(tiny_file), "--by", "a reader"]
    assert cli.main([*arguments, "--out", str(tmp_path / "one"), "--seed", "1"]) == 2, "one seed is not enough"
    assert read_evidence(Stored(path)).tier == "claimed"
    assert cli.main([*arguments, "--out", str(tmp_path / "all")]) == 0
    evidence = read_evidence(Stored(path))
    assert evidence.tier == "reproduced"
    assert evidence.reproduced is not None
    assert (evidence.reproduced.seeds, evidence.reproduced.by) == ([0, 1, 2], "a reader")
    assert verify_entry(path, track=lstm.track).faults == []
    finished = ["reproduce", str(path), "--track", str(tiny_file), "--run", str(tmp_path / "all")]
    assert cli.main(finished) == 0
    assert cli.main([*finished, "--seed", "1"]) == 2
    forged = evidence.model_copy(update={"reproduced": evidence.reproduced.model_copy(update={"seeds": [0, 1]})})
    write_evidence(Stored(path), forged)
    (fault,) = verify_entry(path, track=lstm.track).faults
    assert str(fault) == "tier: not every seed and score was reproduced"


def test_a_run_that_learned_less_is_another(lstm: Made, tiny_file: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "training.learning_rate": 1e-6}
    result = regbench.run(str(tiny_file), "lstm", (0, 1, 2), settings=settings, out=tmp_path / "run")
    made = compare_runs(lstm.entry, result, tmp_path / "run", lstm.track)
    assert made.identical == ()
    assert "nll" in made.differs
    assert made.changes["nll"].worse, "fewer nats are better, and it has more"


def test_what_cannot_be_reproduced_is_refused(lstm: Made, stranger: Made, tiny_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no seed 7, only 0, 1, 2"):
        reproduce(lstm.path, seeds=[7], track=str(tiny_file))
    with pytest.raises(UserError, match=r"not built in, and nothing that came with an entry is run: regbench run"):
        reproduce(stranger.path, track=str(tiny_file))
    with pytest.raises(UserError, match="is a run of another configuration than lstm"):
        reproduce(lstm.path, run=stranger.run, track=str(tiny_file))
    edited = tmp_path / "tiny-v1" / lstm.path.name
    edited.parent.mkdir()
    edited.write_text(lstm.path.read_text().replace('"lstm"', '"gru"'))
    with pytest.raises(UserError, match="is no entry that could be reproduced"):
        reproduce(edited, track=str(tiny_file))
    with pytest.raises(UserError, match="no such file"):
        reproduce(tmp_path / "tiny-v1" / "none.json", track=str(tiny_file))
