"""An entry's command run again: the same to the bit here, within noise elsewhere, and another where it is another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import regbench
from regbench import cli
from regbench.leaderboard.challenge import challenge
from regbench.leaderboard.reproduce import compare_runs, keep_reproduction, reproduce
from regbench.leaderboard.store import Stored
from regbench.leaderboard.tiers import Evidence, Reproduced, Submitted, read_evidence, today, write_evidence
from regbench.leaderboard.verify import verify_entry
from regbench.metrics.significance import default_prior
from regbench.utils.errors import UserError
from tests.leaderboard.conftest import SETTINGS, Made, board_of, isolates


def test_the_command_of_an_entry_gives_its_scores_again(
    lstm: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "again"
    arguments = ["reproduce", str(lstm.path), "--track", str(tiny_file), "--out", str(out)]
    assert cli.main([*arguments, "--seed", "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert "predictions the same to the bit: seeds 1, 2; what differs above is the entry" in printed.replace("\n", " ")
    assert printed.count("the same") == 1 + len(lstm.entry.result.metrics)
    assert cli.main([*arguments, "--seed", "1", "2"]) == 0, "a finished one is compared again"
    with monkeypatch.context() as patch:
        patch.chdir(tiny_file.parent)
        relative = [tiny_file.name if word == str(tiny_file) else word for word in arguments]
        assert cli.main([*relative, "--seed", "1", "2"]) == 0, "the same file by another path"
    assert cli.main(arguments) == 2, "other seeds"
    assert "holds a run of other seeds" in capsys.readouterr().err
    other = ["reproduce", str(lstm.path), "--track", str(tiny_file), "--out", str(lstm.run.parent / "other")]
    regbench.run(str(tiny_file), "lstm", (0,), settings={**SETTINGS, "d_model": 4}, out=lstm.run.parent / "other")
    assert cli.main(other) == 2
    assert "is a run of another configuration than lstm" in capsys.readouterr().err


@pytest.fixture(scope="module")
def again(lstm: Made, tiny_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second training of all seeds."""
    folder = tmp_path_factory.mktemp("again") / "run"
    regbench.run(str(tiny_file), "lstm", (0, 1, 2), settings=SETTINGS, trials=2, out=folder)
    return folder


def test_all_seeds_by_somebody_make_an_entry_reproduced(
    lstm: Made, again: Path, tiny_file: Path, tmp_path: Path
) -> None:
    path = board_of(lstm, tmp_path)
    arguments = ["reproduce", str(path), "--track", str(tiny_file), "--by", "a reader"]
    assert cli.main([*arguments, "--out", str(tmp_path / "one"), "--seed", "1"]) == 2, "one seed is not enough"
    assert not (tmp_path / "one").exists(), "it says so before it trains"
    assert read_evidence(Stored(path)).tier == "claimed"
    assert cli.main([*arguments, "--out", str(again)]) == 0
    evidence = read_evidence(Stored(path))
    assert evidence.tier == "reproduced"
    found, machine = evidence.reproduced, lstm.entry.result.environment
    assert found is not None
    assert (found.seeds, found.by, found.date) == ([0, 1, 2], "a reader", today())
    assert found.machine == f"{machine.platform}, {machine.processor}, cpu"
    assert found.errors is not None
    assert set(found.errors) == set(lstm.entry.metrics)
    assert all(0 < error < 0.2 for error in found.errors.values())
    assert verify_entry(Stored(path), track=lstm.track).faults == []
    finished = ["reproduce", str(path), "--track", str(tiny_file), "--run", str(again)]
    assert cli.main(finished) == 0
    assert cli.main([*finished, "--seed", "1"]) == 2


def test_what_makes_no_entry_reproduced(lstm: Made, again: Path, tiny_file: Path, tmp_path: Path) -> None:
    path = board_of(lstm, tmp_path)

    def keep(run: Path, by: str = "a reader") -> None:
        keep_reproduction(reproduce(Stored(path), run=run, track=str(tiny_file)), by, lstm.track)

    with pytest.raises(UserError, match="is the run that lstm.* was made from, and no second training"):
        keep(lstm.run)
    other = tmp_path / "other"
    shutil.copytree(again, other)
    shutil.copy(other / "seed-1" / "checkpoint.safetensors", other / "seed-0" / "checkpoint.safetensors")
    with pytest.raises(UserError, match="has a fault: checkpoint: seed 0"):
        keep(other)
    changed = tmp_path / "changed"
    shutil.copytree(again, changed)
    text = (changed / "result.json").read_text()
    assert '"dirty": false' in text
    (changed / "result.json").write_text(text.replace('"dirty": false', '"dirty": true'))
    with pytest.raises(UserError, match="has a fault: code: the code had changes that were not committed"):
        keep(changed)
    for nameless in ("", " ", "x\x1b[2J", "x" * 300):
        with pytest.raises(UserError, match="--by needs a name"):
            keep(again, nameless)
    write_evidence(
        Stored(path), Evidence(entry=lstm.entry.digest, submitted=Submitted(date="2026-11-27", by="A.  Reader"))
    )
    assert cli.main(["reproduce", str(path), "--track", str(tiny_file), "--run", str(again), "--by", "a. reader"]) == 2
    assert read_evidence(Stored(path)).about == "claimed 2026-11-27 by A.  Reader"
    keep(again, "another")
    assert read_evidence(Stored(path)).submitted is not None, "what was known stays"


def test_evidence_of_a_second_training_that_does_not_hold(
    lstm: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a track whose seeds are known to spread little."""
    monkeypatch.setattr(
        "regbench.leaderboard.tiers.prior_of",
        lambda _, metric: default_prior(metric).model_copy(update={"freedom": 20.0}),
    )
    path, entry = board_of(lstm, tmp_path), lstm.entry
    scores = [{metric: record.value for metric, record in seed.scores.items()} for seed in entry.result.seeds]
    honest = Reproduced(
        date="2026-11-27", by="a reader", machine="a machine", seeds=[0, 1, 2], scores=scores, identical=[]
    )

    def found(submitted: Submitted | None = None, **changes: object) -> list[str]:
        again = honest.model_copy(update=changes)
        write_evidence(Stored(path), Evidence(entry=entry.digest, submitted=submitted, reproduced=again))
        return [str(fault) for fault in verify_entry(Stored(path), track=lstm.track).faults]

    assert found() == []
    assert found(seeds=[0, 1]) == ["tier: not every seed and score was reproduced"]
    assert found(identical=[7]) == ["tier: not every seed and score was reproduced"]
    assert found(scores=scores[:2]) == ["tier: not every seed and score was reproduced"]
    for much in (0.8, 1.2):
        (fault,) = found(scores=[{**one, "nll": much * one["nll"]} for one in scores])
        assert fault.startswith("tier: the nll of the second training is ")
    errors = dict.fromkeys(entry.metrics, 0.0)
    more = [{**one, "nll": 1.2 * one["nll"]} for one in scores]
    assert found(scores=more, errors={**errors, "nll": 0.5}) == [], "so wide is the noise of the second training"
    assert "more than there can be" in found(errors={**errors, "nll": 10.0})[0]
    assert len(found(scores=more, errors=errors)) == 1
    assert found(errors={"nll": 0.1}) == ["tier: not every score of the second training has an error"]
    main = entry.metrics[0]
    wide = {**errors, main: 0.1 * scores[0][main]}
    (fault,) = found(scores=[{**one, main: 0.1 * one[main]} for one in scores], errors=wide)
    assert fault.startswith(f"tier: the {main} of the second training is "), "not so of the main score"
    (fault,) = found(
        scores=[{**one, main: share * one[main]} for one, share in zip(scores, (1, 0.1, 0.1), strict=True)]
    )
    assert fault.startswith(f"tier: the {main} of the second training is "), (
        "seeds that collapse do not excuse themselves"
    )
    seesaw = [{**one, main: share * one[main]} for one, share in zip(scores, (0.8, 1.0, 1.2), strict=True)]
    assert found(scores=seesaw) == [], "some architectures' seeds are far apart"
    beyond = found(scores=[{**one, "nll": 1.7e308} for one in scores])
    assert beyond == ["tier: a score of the second training is beyond measure"]
    same = found(submitted=Submitted(date="2026-11-27", by="A Reader"))
    assert same == ["tier: it was reproduced by who submitted it"]


def test_a_run_that_learned_less_is_another(lstm: Made, tiny_file: Path, tmp_path: Path) -> None:
    settings = {**SETTINGS, "training.learning_rate": 1e-6}
    result = regbench.run(str(tiny_file), "lstm", (0, 1, 2), settings=settings, out=tmp_path / "run")
    made = compare_runs(lstm.stored, result, tmp_path / "run", lstm.track)
    assert made.identical == ()
    assert "nll" in made.differs
    assert made.changes["nll"].worse, "fewer nats are better, and it has more"


def test_what_cannot_be_reproduced_is_refused(lstm: Made, stranger: Made, tiny_file: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no seed 7, only 0, 1, 2"):
        reproduce(lstm.stored, seeds=[7], track=str(tiny_file))
    with pytest.raises(
        UserError, match=r"not built in, so it is not trained here\. Read .*, copy it to my_average\.py"
    ):
        reproduce(stranger.stored, track=str(tiny_file))
    with pytest.raises(UserError, match="is a run of another configuration than lstm"):
        reproduce(lstm.stored, run=stranger.run, track=str(tiny_file))
    edited = tmp_path / "tiny-v1" / lstm.path.name
    edited.parent.mkdir()
    edited.write_text(lstm.path.read_text().replace('"lstm"', '"gru"'))
    with pytest.raises(UserError, match="is no entry that could be reproduced"):
        reproduce(Stored(edited), track=str(tiny_file))
    with pytest.raises(UserError, match="no such file"):
        reproduce(Stored(tmp_path / "tiny-v1" / "none.json"), track=str(tiny_file))


@pytest.mark.ci
@isolates
def test_a_strangers_file_that_somebody_trained_again(
    stranger: Made, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, source = board_of(stranger, tmp_path), tmp_path / "my_average.py"
    source.write_bytes(Stored(path).source or b"")
    again = tmp_path / "again"
    regbench.run(str(tiny_file), str(source), (0, 1, 2), settings=SETTINGS, out=again)
    words = ["reproduce", str(path), "--track", str(tiny_file), "--run", str(again)]
    assert cli.main([*words, "--run-their-code"]) == 2
    assert "--run-their-code goes with --run and --by" in capsys.readouterr().err
    words += ["--by", "a reader"]
    assert cli.main([*words, "--run-their-code"]) == 2
    assert "is not built in and not yet verified: regbench challenge comes first" in capsys.readouterr().err
    challenge(Stored(path), stranger.run, by="x", track=stranger.track, cuts=100, run_their_code=True)
    assert cli.main(words) == 2
    assert "is not built in: --run-their-code lets its weights predict, isolated" in capsys.readouterr().err
    assert cli.main([*words, "--run-their-code"]) == 0
    evidence = read_evidence(Stored(path))
    assert (evidence.tier, evidence.reproduced and evidence.reproduced.identical) == ("reproduced", [0, 1, 2])
    assert verify_entry(Stored(path), track=stranger.track).faults == []
    write_evidence(Stored(path), evidence.model_copy(update={"challenge": None}))
    (fault,) = verify_entry(Stored(path), track=stranger.track).faults
    assert str(fault) == "tier: it was reproduced before it was verified, and it is not built in"

    def keep(run: Path) -> None:
        write_evidence(Stored(path), evidence)
        made = reproduce(Stored(path), run=run, track=str(tiny_file))
        keep_reproduction(made, "a reader", stranger.track, run_their_code=True)

    mixed = tmp_path / "mixed"
    shutil.copytree(again, mixed)
    shutil.copy(mixed / "seed-1" / "checkpoint.safetensors", mixed / "seed-0" / "checkpoint.safetensors")
    with pytest.raises(UserError, match="has a fault: checkpoint: seed 0"):
        keep(mixed)
    source.write_text(source.read_text() + "\n# edited\n")
    regbench.run(str(tiny_file), str(source), (0, 1, 2), settings=SETTINGS, out=tmp_path / "edited")
    with pytest.raises(UserError, match=r"is by another my_average\.py than the entry"):
        keep(tmp_path / "edited")
