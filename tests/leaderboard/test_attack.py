"""Forged entries and runs: none that says something else than the honest one is accepted, and none makes anything crash.

The default suite forges a leaf of every kind; with `-m slow` it is every leaf, several times.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regbench.leaderboard.origin import digest_at
from regbench.leaderboard.store import Stored
from regbench.leaderboard.verify import verify_entry, verify_run
from regbench.utils.errors import UserError
from tests.leaderboard.attacks import at, forgeries, leaves, one_of_each_kind, put, seal, store, unseen
from tests.leaderboard.conftest import Made

_MACHINE = [
    f"result.environment.{x}" for x in ("python", "platform", "processor", "device", "threads", "backend", "packages.*")
]

UNSEEN_WITH_RUN = [
    *_MACHINE,  # what it ran on
    "result.code.commit",  # another commit with the same source
    "result.baselines.*.seconds",
    "result.seeds.*.peak_memory_bytes",
    "result.seeds.*.training_curve.*.loss.*",
    "configuration.backend",
    "configuration.device",
]
"""What a careful forger can write into a run folder's result (and its copies) without being found out: no score depends on it."""

LOSSES = ["result.seeds.*.training_curve.*.validation_loss"]
"""Unless another step would then be the best."""

UNSEEN_ALONE = [
    *UNSEEN_WITH_RUN,
    "name",  # what one calls one's entry is one's own choice
    "result.seeds.*.predictions_sha256",
    "result.seeds.*.curves.*.value.*",
    *LOSSES,
]
"""The same of an entry without the predictions and the logs that it was made from."""

UNSEEN_OF_STRANGERS = [
    "configuration.settings.*",
    "result.architecture.options.*",
    "result.architecture.parameters",
    "result.architecture.state_bytes",
    "result.training.learning_rate",
    "result.training.final_learning_rate",
    "result.training.warmup",
    "result.training.weight_decay",
    "result.training.beta*",
    "result.training.gradient_clip",
    "result.training.state_space_rate",
    "result.training.checkpoint_seconds",  # decides no score
    "result.training.keep_checkpoints",  # decides no score
]
"""What more can be forged where the architecture is a stranger's file, which is never imported."""


def forge_leaves(made: Made, folder: Path, places: list[Any], values: Callable[[Any], list[Any]]) -> Counter[str]:
    """Verifies, for each place and value, the entry that says something else there; by kind of leaf, how many were accepted."""
    content = made.entry.content()
    accepted: Counter[str] = Counter()
    for place in places:
        for value in values(at(content, place)):
            forged = put(content, place, value)
            path = store(forged if place == ("digest",) else seal(forged), folder)
            if made.source is not None:
                shutil.copy(made.source, path.with_name(Stored(path).source_name))
            findings = verify_entry(Stored(path), track=made.track)
            assert all("\n" not in str(fault) for fault in findings.faults)
            same_number = place[:2] == ("configuration", "settings") and value == str(at(content, place))
            if not findings.faults and not same_number:  # as in "1e-3", which YAML does not read as a number
                accepted[".".join(map(str, place))] += 1
            shutil.rmtree(path.parent)
    return accepted


def patterns_of(accepted: Counter[str], allowed: list[str]) -> set[str]:
    """The patterns by which what was accepted may be; anything else fails."""
    found = {name: unseen(tuple(name.split(".")), allowed) for name in accepted}
    assert [name for name, pattern in found.items() if pattern is None] == []
    return {pattern for pattern in found.values() if pattern is not None}


def without_git(made: Made) -> list[str]:
    """The source's digest can only be compared where its commit is."""
    result = made.entry.result
    known = digest_at(str(result.code.commit), result.architecture.source)
    return [] if known or made.source else ["result.architecture.source_sha256"]


@pytest.mark.ci
def test_a_changed_leaf_is_found_even_if_the_digest_is_made_anew(lstm: Made, tmp_path: Path) -> None:
    places = one_of_each_kind(lstm.entry.content())
    assert len(places) > 80
    turns = itertools.count()
    accepted = forge_leaves(lstm, tmp_path, places, lambda v: [(f := forgeries(v))[next(turns) % len(f)]])
    patterns_of(accepted, UNSEEN_ALONE + without_git(lstm))


@pytest.mark.ci
def test_what_cannot_be_found_is_no_longer_a_list_than_it_must_be(lstm: Made, tmp_path: Path) -> None:
    places = [p for p in one_of_each_kind(lstm.entry.content()) if unseen(p, UNSEEN_ALONE)]
    places.append(
        ("result", "seeds", 0, "training_curve", 0, "validation_loss")
    )  # not that of the weights that were kept
    accepted = forge_leaves(lstm, tmp_path, places, lambda v: forgeries(v)[:2])
    assert patterns_of(accepted, UNSEEN_ALONE) == set(UNSEEN_ALONE)


def _seeds(content: dict[str, Any], *places: int, first: int = 0) -> None:
    """Puts the records and the instances of these seeds into the places of the seeds from `first` on."""
    result, instances = content["result"], content["instances"]
    result["seeds"] = [{**result["seeds"][place], "seed": first + i} for i, place in enumerate(places)]
    instances["sums"] = [instances["sums"][place] for place in places]
    content["configuration"]["seeds"] = list(range(first, first + len(places)))


def _backwards(content: dict[str, Any]) -> None:
    own = content["instances"]
    own.update(sums=[{m: x[::-1] for m, x in one.items()} for one in own["sums"]], counts=own["counts"][::-1])


WRONG: dict[str, Callable[[dict[str, Any]], object]] = {
    "two seeds": lambda c: (c["result"]["seeds"].pop(), c["instances"]["sums"].pop()),
    "instances of two seeds swapped": lambda c: c["instances"]["sums"].insert(0, c["instances"]["sums"].pop(1)),
    "instances in another order": _backwards,
    "a seed's records swapped": lambda c: (
        [c["result"]["seeds"][i].update(seed=1 - i) for i in (0, 1)],
        c["result"]["seeds"].insert(0, c["result"]["seeds"].pop(1)),
    ),
    "the best seed three times": lambda c: _seeds(c, 0, 0, 0),
    "other seeds": lambda c: _seeds(c, 0, 1, 2, first=5),
    "no curves": lambda c: [s.update(curves={}) for s in c["result"]["seeds"]],
    "no metric": lambda c: [s["scores"].pop("tvd") for s in c["result"]["seeds"]],
    "no baselines": lambda c: (
        c["result"].update(baselines={}),
        [s.update(share_of_the_way={}) for s in c["result"]["seeds"]],
    ),
    "a baseline of your own": lambda c: c["result"]["baselines"].update(mine=c["result"]["baselines"]["unigram"]),
    "chosen on the test split": lambda c: c["result"]["selection"].update(split="test"),
    "no fingerprints": lambda c: c["result"]["track"].update(fingerprints={}),
    "another track's fingerprint": lambda c: c["result"]["track"]["fingerprints"].update(test="0" * 64),
    "too many tokens": lambda c: c["result"]["training"].update(train_tokens=10**9),
    "another score on top": lambda c: c["result"]["seeds"][0]["scores"].update(extra={"value": 1.0, "stderr": 0.0}),
    "an unknown field": lambda c: c.update(extra=1),
    "schema 3": lambda c: c.update(schema_version=3),
    "schema true": lambda c: c.update(schema_version=True),
    "a track by path": lambda c: c["result"]["track"].update(name="../../tiny-v1.yaml"),
    "an architecture by path": lambda c: c["result"]["architecture"].update(source="../../../etc/passwd"),
    "a name that leaves the folder": lambda c: c.update(name="../../x"),
    "a name in other letters": lambda c: c.update(name="lstm+ｌｓｔｍ"),
    "a name that turns the line around": lambda c: c["result"]["environment"].update(processor="x\u202ey"),
    "a terminal's escape codes": lambda c: c["result"]["environment"].update(processor="\x1b[2J"),
    "someone else's name": lambda c: c.update(name="mamba"),
    "the code of evil.py": lambda c: c["configuration"].update(architecture="evil.py"),
    "the code of evil.py, by its name the LSTM": lambda c: c["configuration"].update(architecture="evil.py:lstm"),
    "the code of evil/lstm.py, by its name the LSTM": lambda c: c["configuration"].update(architecture="evil/lstm.py"),
    "a track by path, asked": lambda c: c["configuration"].update(track="../tiny-v1.yaml"),
    "an option that is not there": lambda c: c["configuration"]["settings"].update(x=1),
    "a command and a configuration": lambda c: c.update(command="regbench run"),
    "version 1": lambda c: (c.pop("configuration"), c.update(schema_version=1, command="regbench run --arch lstm")),
}
"""Entries that are wrong as a whole: how the honest one is changed."""


@pytest.mark.ci
def test_entries_that_are_wrong_as_a_whole(lstm: Made, tmp_path: Path) -> None:
    for name, change in WRONG.items():
        forged = lstm.entry.content()
        change(forged)
        path = store(seal(forged), tmp_path)
        assert verify_entry(Stored(path), track=lstm.track).faults, name


def test_the_honest_entry_under_another_name_or_in_another_place(lstm: Made, tmp_path: Path) -> None:
    text = lstm.path.read_bytes()
    for place in ("tiny-v1/x.json", f"other-v1/{lstm.path.name}", f"tiny-v1/{lstm.path.name.upper()}"):
        path = tmp_path / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text)
        assert verify_entry(Stored(path), track=lstm.track).faults, place
        path.unlink()
    link = tmp_path / "tiny-v1" / lstm.path.name
    link.symlink_to(lstm.path)
    assert "links are not followed" in str(verify_entry(Stored(link), track=lstm.track).faults)


def forge_result(made: Made, run: Path, places: list[Any], values: Callable[[Any], list[Any]]) -> Counter[str]:
    """The same for `result.json` of a run folder."""
    original = json.loads((made.run / "result.json").read_text())
    accepted: Counter[str] = Counter()
    for place in places:
        for value in values(at(original, place)):
            (run / "result.json").write_text(json.dumps(put(original, place, value)))
            try:
                refused = bool(verify_run(run, made.track)[1].faults)
            except UserError:
                refused = True
            if not refused:
                accepted[".".join(map(str, ("result", *place)))] += 1
    return accepted


@pytest.mark.ci
def test_a_changed_leaf_of_a_run_is_found(lstm: Made, tmp_path: Path) -> None:
    places = one_of_each_kind(json.loads((lstm.run / "result.json").read_text()))
    turns = itertools.count(1)
    run = lstm.copy(tmp_path / "run")
    accepted = forge_result(lstm, run, places, lambda v: [(f := forgeries(v))[next(turns) % len(f)]])
    patterns_of(accepted, [*UNSEEN_WITH_RUN, *LOSSES, *without_git(lstm)])
    unseen_places = [p for p in places if unseen(("result", *p), UNSEEN_WITH_RUN)]
    accepted = forge_result(lstm, run, unseen_places, lambda v: forgeries(v)[:1])
    assert patterns_of(accepted, UNSEEN_WITH_RUN) == {one for one in UNSEEN_WITH_RUN if one.startswith("result.")}


@pytest.mark.slow
def test_every_leaf_several_times(lstm: Made, stranger: Made, tmp_path: Path) -> None:
    turns = itertools.count()

    def three(value: Any) -> list[Any]:
        other, start = forgeries(value), next(turns)
        return [other[(start + 3 * i) % len(other)] for i in range(3)]

    patterns_of(
        forge_leaves(lstm, tmp_path, list(leaves(lstm.entry.content())), three), UNSEEN_ALONE + without_git(lstm)
    )
    accepted = forge_leaves(stranger, tmp_path, one_of_each_kind(stranger.entry.content()), forgeries)
    assert patterns_of(accepted, UNSEEN_ALONE + UNSEEN_OF_STRANGERS) >= set(UNSEEN_OF_STRANGERS)
