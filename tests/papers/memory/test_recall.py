"""Recall over training: read from logs, the order of learning, the figure and the CSV file."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest
import torch

from architectures.associative_memory import AssociativeMemory
from papers.memory.recall import (
    Measured,
    in_order,
    learned_at,
    plot_recall,
    read_measured,
    write_csv,
)
from regbench import cli
from regbench.config import Config, write_config
from regbench.models.build import build, resolve_options
from regbench.tracks import load_track
from regbench.training.checkpoint import save_tensors
from regbench.training.options import resolve_training
from regbench.training.trainer import Trainer
from regbench.utils.errors import UserError


def made(every: int = 10, **recalls: list[float]) -> Measured:
    count = len(next(iter(recalls.values())))
    figures = {f"recall.{name}": tuple(values) for name, values in recalls.items()}
    figures |= {f"chance.{name}": (0.2,) * count for name in recalls}
    return Measured(Path("run"), 0, tuple(range(0, every * count, every)), figures)


def test_a_memory_is_learned_when_it_stays_above_half_of_its_way_from_chance() -> None:
    lucky = made(k2=[0.8, 0.2, 0.4, 0.7, 0.5, 0.6, 1.0, 1.0])  # above 0.6 at the beginning, by luck, and undone later
    assert learned_at(lucky, "k2") == 50
    assert learned_at(made(k2=[1.0, 1.0]), "k2") == 0
    assert learned_at(made(k2=[0.0, 0.1]), "k2") is None
    assert learned_at(made(k2=[0.0, 0.1, 0.4]), "k2") == 20  # half of the way to what it reached


def test_the_order_of_learning_lets_the_first_two_tie() -> None:
    late, middle, early = [0.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0]
    order = ("o2", "k2", "k1")
    assert in_order(made(o2=early, k2=middle, k1=late), order)
    assert in_order(made(o2=middle, k2=early, k1=late), order)  # one row of the log
    assert not in_order(made(o2=late, k2=early, k1=late), order)
    assert not in_order(made(o2=early, k2=middle, k1=middle), order)
    assert not in_order(made(o2=early, k2=late, k1=middle), order)
    assert not in_order(made(o2=early, k2=middle, k1=[0.0] * 4), order)  # never learned
    with pytest.raises(UserError, match="unknown memory 'k33'; known: k1, k2, o2"):
        in_order(made(o2=early, k2=middle, k1=late), ("o2", "k33"))
    with pytest.raises(UserError, match="needs two memories or more"):
        in_order(made(o2=early), ("o2",))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of two seeds has after training: its configuration, and of each seed the log and the weights."""
    folder = tmp_path_factory.mktemp("recall")
    file = folder / "outputs-v1.yaml"
    file.write_text(
        "name: outputs-v1\ntask: bigram\nmain_score: in_context_accuracy\n"
        "parameters: {n_symbols: 8, n_triggers: 2, length: 16, triggers: fixed, predict: outputs}\n"
        "splits: {train: 40, validation: 8, test: 8, seed: 0}\nbudget: {train_tokens: 640}\n"
    )
    track, run = load_track(str(file)), folder / "run"
    settings = {"d_model": 16, "training.batch_size": 8}
    options = resolve_training(AssociativeMemory, {"batch_size": 8, "evaluations": 2})
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = build(AssociativeMemory, resolve_options(AssociativeMemory, {"d_model": 16}), track.task.io)
        Trainer(
            model,
            track.instances("train"),
            track.instances("validation"),
            options,
            budget=640,
            seed=seed,
            folder=run / f"seed-{seed}",
            device=torch.device("cpu"),
            task=track.task,
        ).run()
        save_tensors(run / f"seed-{seed}" / "checkpoint.safetensors", model.state_dict())
    write_config(run, Config(track=str(file), architecture="associative_memory", seeds=(0, 1), settings=settings))
    return run


@pytest.mark.ci
def test_a_run_tells_its_recall_at_every_step(run: Path, tmp_path: Path) -> None:
    found = read_measured(run)
    assert [one.seed for one in found] == [0, 1]
    for one in found:
        assert one.steps == tuple(range(6))  # 40 instances in batches of 8, and before the first step
        assert one.memories() == ["o2", "k2", "k1", "k1_near"]
        assert one.every == 1
        rows = [json.loads(line) for line in (run / f"seed-{one.seed}" / "metrics.jsonl").read_text().splitlines()]
        assert [row["measured.recall.o2"] for row in rows] == list(one.figures["recall.o2"])
    write_csv(found, tmp_path / "am.csv")
    with open(tmp_path / "am.csv", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    assert head == ["run", "seed", "step", "name", "value"]
    assert len(rows) == 2 * 6 * 8
    assert [str(run), "1", "5", "recall.o2", str(found[1].figures["recall.o2"][5])] in rows
    plot_recall(found, tmp_path / "am.png")
    assert (tmp_path / "am.png").read_bytes()[:4] == b"\x89PNG"


def test_what_has_no_recall_is_refused_in_one_line(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no run"):
        read_measured(tmp_path)
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    with pytest.raises(UserError, match="has not trained seed 0: there is no seed-0/metrics.jsonl"):
        read_measured(tmp_path)
    (tmp_path / "seed-0").mkdir()
    for text, message in (
        ('{"step": 1}', "has no recall to show: 'associative_memory' measures none"),
        ("{", "is no log of a training"),
        ('{"step": 1e999, "measured.recall.o2": 1}', "is no log of a training"),
        ('{"step": 1, "measured.recall.o2": 1' + 400 * "0" + "}", "is no log of a training"),
        ("", "has no recall to show"),
    ):
        (tmp_path / "seed-0" / "metrics.jsonl").write_text(text)
        with pytest.raises(UserError, match=message) as error:
            read_measured(tmp_path)
        assert "\n" not in str(error.value)
    (tmp_path / "seed-0" / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "seed-0" / "metrics.jsonl")
    with pytest.raises(UserError, match="is no log of a training"):
        read_measured(tmp_path)


def test_the_command_shows_the_order_and_says_no_to_another(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "am"
    (run / "seed-0").mkdir(parents=True)
    write_config(run, Config(track="bigram-outputs-small-v1", architecture="associative_memory"))
    late, early = [0.0, 0.0, 0.9], [0.0, 0.9, 1.0]
    chance = {"measured.chance.o2": 0.1, "measured.chance.k1": 0.05}
    rows = [{"step": 5 * i, "measured.recall.o2": early[i], "measured.recall.k1": late[i], **chance} for i in range(3)]
    (run / "seed-0" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture, table = tmp_path / "am.png", tmp_path / "am.csv"
    asked = ["recall", str(run)]
    assert cli.main([*asked, "--expect", "o2,k1", "--out", str(picture), "--csv", str(table)]) == 0
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.split()[:1] == ["am"]] == [
        ["am", "o2", "0", "1.000", "0.100", "5"],
        ["am", "k1", "0", "0.900", "0.050", "10"],
    ]
    assert "o2 before k1: yes" in out
    assert picture.stat().st_size > 10_000
    assert table.read_text().startswith("run,seed,step,name,value\n")
    rows[0]["measured.recall.k1"] = rows[1]["measured.recall.k1"] = 0.9
    rows[1]["measured.recall.o2"] = 0.0
    (run / "seed-0" / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert cli.main([*asked, "--expect", "o2,k1"]) == 1
    assert "o2 before k1: not in every seed" in capsys.readouterr().out
    for more, message in (
        (["--expect", "o2,k3"], "unknown memory 'k3'"),
        (["--out", "am.pdf"], "--out takes the name of a PNG picture, not 'am.pdf'"),
    ):
        assert cli.main([*asked, *more]) == 2
        assert message in capsys.readouterr().err
