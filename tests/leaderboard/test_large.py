"""Folders of a stranger on the track with the largest predictions: what reads them stays under 1 GiB and 30 s.

On a quiet machine they take 23 to 29 s of processor time a folder. It grows with what else a machine does, here up to twice. So
60 s are allowed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml

from regbench.evaluation.predictions import Predictions, expected_arrays
from regbench.leaderboard.claim import RunFolder
from regbench.leaderboard.entry import Entry, InstanceScores, canonical
from regbench.metrics.scores import score, score_records
from regbench.results import Result
from regbench.tracks import load_track
from tests.leaderboard.conftest import Made

TRACK = "mqar-v1"
"""400 MiB of predictions a seed."""

PEAK = """
import sys
from pathlib import Path
from regbench.cli import main
code = main(sys.argv[1:])
peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print("PEAK", int(peak.split()[1]) * 1024, code)
"""
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]


@pytest.fixture(scope="module")
def large(lstm: Made, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run folder of three seeds with one file of predictions, and an entry of it."""
    folder, track = tmp_path_factory.mktemp("large"), load_track(TRACK)
    run, test = folder / "run", track.instances("test")
    like = expected_arrays(track.task, test)["packed"]
    rows = np.random.default_rng(0).random((64, like.shape[1])) ** 8
    rows = (rows / rows.sum(1, keepdims=True)).astype(np.float16)
    predictions = Predictions(np.resize(rows, like.shape), test.lengths)
    scored = score(track.task, test, predictions.batches())
    scores, curves = score_records(scored)
    content = json.loads((lstm.run / "result.json").read_text())
    content["track"] = track.record().model_dump(mode="json")
    content["baselines"] = {}
    shutil.copytree(lstm.run, run)
    digest = predictions.save(run / "seed-0" / "predictions.npz")
    for seed in content["seeds"]:
        seed["scores"] = {metric: one.model_dump() for metric, one in scores.items()}
        seed["curves"] = {metric: curve.model_dump() for metric, curve in curves.items()}
        seed["share_of_the_way"], seed["predictions_sha256"] = {}, digest
        place = run / f"seed-{seed['seed']}"
        (place / "scores.json").write_text(json.dumps(seed))
        if seed["seed"] > 0:
            (place / "predictions.npz").unlink()
            os.link(run / "seed-0" / "predictions.npz", place / "predictions.npz")
    (run / "result.json").write_text(json.dumps(content))
    asked = yaml.safe_load((run / "config.yaml").read_text()) | {"track": TRACK}
    (run / "config.yaml").write_text(yaml.safe_dump(asked))
    entry = Entry.seal(
        "lstm-large", RunFolder(run).configuration, Result.model_validate(content), InstanceScores.of([scored] * 3)
    )
    path = folder / TRACK / entry.file_name
    path.parent.mkdir()
    path.write_text(canonical(entry.content()))
    return run, path


@pytest.mark.parametrize(
    ("command", "said", "folders"),
    [
        (["report", "{run}"], "report.html", 1),
        (["compare", "a={run}", "b={run}", "--tokens", "160"], "among the first 160 tokens", 2),
        (["verify", "{entry}", "--run", "{run}"], "two seeds have the same predictions", 1),
        (["challenge", "{entry}", "--run", "{run}", "--by", "x"], "two seeds have the same predictions", 1),
    ],
)
def test_it_is_read_within_bounds(
    large: tuple[Path, Path], command: Sequence[str], said: str, folders: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run, entry = large
    words = [word.format(run=run, entry=entry) for word in command]
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *words], capture_output=True, text=True, check=False, timeout=1800
    )
    after = os.times()
    assert done.returncode == 0, done.stderr[-2000:]
    seconds = after.children_user - before.children_user + after.children_system - before.children_system
    peak = int(done.stdout.rpartition("PEAK ")[2].split()[0])
    with capsys.disabled():
        print(f"\n{words[0]}: {seconds:.0f} s of processor time, {peak / 2**20:.0f} MiB")
    assert said in done.stdout
    assert "Traceback" not in done.stderr
    assert peak < 1 << 30
    assert seconds < 60 * folders
