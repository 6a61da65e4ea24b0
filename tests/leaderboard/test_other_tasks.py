"""Entries of tasks whose tokens are vectors, and of tasks with scores over groups and curves by progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import regbench
from regbench.leaderboard import publish
from regbench.leaderboard.rank import rank
from regbench.leaderboard.store import Stored
from regbench.leaderboard.verify import submit, verify_entry
from regbench.tracks import load_track
from tests.leaderboard.attacks import at, forgeries, one_of_each_kind, unseen
from tests.leaderboard.conftest import Made
from tests.leaderboard.test_attack import UNSEEN_ALONE, forge_leaves

TRACKS: dict[str, dict[str, Any]] = {
    "linear_regression": {"parameters": {"d_x": 2, "d_y": 2, "n_examples": 6}, "main_score": "mse"},
    "arithmetic": {"parameters": {}, "main_score": "last_two_accuracy"},
    "associative_recall": {
        "parameters": {"n_keys": 4, "n_values": 6, "n_pairs": 12},
        "main_score": "final_accuracy",
    },
    "bigram": {"parameters": {"n_symbols": 6, "n_triggers": 2, "length": 160}, "main_score": "nll"},
}


@pytest.mark.slow
@pytest.mark.parametrize("task", TRACKS)
def test_from_a_run_to_a_table(task: str, committed: None, tmp_path: Path) -> None:
    name = f"tiny-{task.replace('_', '-')}-v1"
    definition = {
        "name": name,
        "task": task,
        "splits": {"train": 40, "validation": 10, "test": 16, "seed": 1},
        "budget": {"train_tokens": 20_000},
        **TRACKS[task],
    }
    file = tmp_path / f"{name}.yaml"
    file.write_text(yaml.safe_dump(definition))
    track = load_track(str(file))
    settings = {"d_model": 8, "n_layers": 1, "training.batch_size": 8, "training.evaluations": 2}
    regbench.run(str(file), "lstm", (0, 1, 2), settings=settings, out=tmp_path / "run")
    made = submit(tmp_path / "run", tmp_path, track=track)
    assert made.findings.faults == []
    assert made.path is not None
    stored = Stored(made.path)
    assert verify_entry(stored, track=track, run=tmp_path / "run").faults == []
    entry = stored.entry
    (board,) = rank([entry], track)
    assert board.metrics[0] == definition["main_score"]
    assert entry.name in publish.csv(board)
    content = entry.content()
    forged = Made(tmp_path / "run", tmp_path, made.path, track)
    accepted = forge_leaves(forged, tmp_path / "forged", one_of_each_kind(content), lambda v: forgeries(v)[:3])
    loose = ["result.seeds.*.curves.*.stderr.*"]  # of an entry without its predictions
    if task == "bigram":  # what stands behind the most frequent symbols is in no curve, and can make up for it
        loose.append("result.seeds.*.curves.*.value.*")
    rare = [".".join(map(str, place)) for place in one_of_each_kind(content) if not drawn(content, place)]
    taken = [n for n in accepted if not unseen(tuple(n.split(".")), UNSEEN_ALONE + loose + rare)]
    assert taken == []


def drawn(content: dict[str, Any], place: tuple[Any, ...]) -> bool:
    """False of a part of a baseline's curve that rests on too few positions to be drawn: curves are compared as wholes."""
    if place[:2] != ("result", "baselines") or place[3] != "curves" or not isinstance(place[-1], int):
        return True
    counts = at(content, (*place[:5], "count"))
    return bool(counts[place[-1]] >= max(counts) / 20)
