"""Tracks: frozen content, committed statistics, and refusals that name file and line."""

from __future__ import annotations

import copy
import datetime
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from baselines.ngram import NGram
from regbench.config import variant
from regbench.evaluation.baselines import baseline_key
from regbench.tracks import SPLITS, Track, freeze, load_track, track, track_names
from regbench.tracks.track import Definition, frozen_tracks
from regbench.utils.errors import UserError
from tests.conftest import TINY

FREEZABLE = [name for name in track_names() if load_track(name).task.portable]


LARGE = ("bigram-v1", "bigram-outputs-v1", "mqar-v1", "state-tracking-v1")
"""They take seconds each; the small tracks of the same tasks are made by the same code."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.ci if name in LARGE else ()) for name in FREEZABLE]
)
def test_a_built_in_track_is_what_was_frozen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digest, fingerprints, statistics and overlap, all made anew: the cache is neither read nor written."""
    monkeypatch.setattr(track, "cached", lambda config, make: make())
    assert load_track(name).freeze() == frozen_tracks()[name]
    assert set(frozen_tracks()[name]["overlap"].values()) == {0}


def test_every_track_says_what_it_is_in_one_line_that_stands_alone() -> None:
    for summary in track_names().values():
        assert summary.endswith(".")
        assert not summary.startswith("The same")


def test_the_medium_track_is_scored_on_the_small_ones_instances() -> None:
    """And its training split begins with that of the small track."""
    small, medium = load_track("pfa-small-v1"), load_track("pfa-medium-v1")
    for split in ("validation", "test"):
        assert frozen_tracks()[small.name]["fingerprints"][split] == frozen_tracks()[medium.name]["fingerprints"][split]
    few = medium.task.generate(replace(medium.definition.splits, train=100), "train")
    all_of_small = small.instances("train")[:100]
    assert np.array_equal(few.lengths, all_of_small.lengths)
    width = few.tokens.shape[1]
    assert np.array_equal(few.tokens, all_of_small.tokens[:, :width])


def test_every_frozen_track_still_has_its_file() -> None:
    assert set(frozen_tracks()) == set(FREEZABLE)


def test_tracks_of_the_machines_text_are_passed_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What would be recorded holds on this machine alone; and passing them by reads no text."""
    assert {name for name in track_names() if name not in FREEZABLE} == {
        "classification-small-v1",
        "text-small-v1",
        "text-v1",
        "text-mixture-v1",
        "text-mixture-small-v1",
    }
    record = tmp_path / "statistics.json"
    monkeypatch.setattr(freeze, "FROZEN_FILE", record)
    monkeypatch.setattr(freeze, "track_names", lambda: ["text-mixture-v1", "pfa-small-v1"])
    monkeypatch.setattr(freeze, "frozen_tracks", dict)
    monkeypatch.setattr("regbench.data.text.sources.StandardLibrary.documents", None)
    assert freeze.main() == 0
    made = json.loads(record.read_text())
    assert list(made) == ["pfa-small-v1"]
    made["pfa-small-v1"]["statistics"] = "others"
    monkeypatch.setattr(freeze, "frozen_tracks", lambda: made)
    record.unlink()
    assert freeze.main() == 2, "a record is never overwritten"
    assert not record.exists()


@pytest.fixture
def fresh(tiny_file: Path) -> Track:
    """The tiny track without instances in memory."""
    return load_track(str(tiny_file))


def test_the_cache_key_tells_the_source_where_there_is_one(fresh: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is what it always was where there is none."""
    keys = []
    monkeypatch.setattr(track, "cached", lambda config, make: keys.append(config) or make())
    fresh.instances("test")
    monkeypatch.setattr(fresh.task, "source_digest", lambda: "abc")
    fresh.instances("test")
    assert sorted(keys[0]) == ["parameters", "split", "splits", "task", "task_version"]
    assert keys[1] == {**keys[0], "source": "abc"}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("budget", "train_tokens"), 1),
        (("splits", "test"), 501),
        (("parameters", "max_states"), 9),
        (("main_score",), "tvd"),
    ],
)
def test_a_changed_field_without_a_new_version_is_refused(tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    source = Path(load_track.__code__.co_filename).parent / "pfa-small-v1.yaml"
    content = yaml.safe_load(source.read_text(encoding="utf-8"))
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    edited = tmp_path / "edited.yaml"
    edited.write_text(yaml.safe_dump(content))
    with pytest.raises(UserError, match="give a changed track a new version"):
        load_track(str(edited))
    content["name"] = "pfa-small-v99"
    edited.write_text(yaml.safe_dump(content))
    assert load_track(str(edited)).version == 99


DATED = """
import datetime
from pathlib import Path

from regbench.tasks.pfa import PFA


class Dated(PFA):
    class Parameters(PFA.Parameters):
        source: Path
        since: datetime.date
"""


def test_parameters_may_be_paths_and_dates(tmp_path: Path) -> None:
    """JSON, in which digests and cache keys are written, has neither."""
    (tmp_path / "dated.py").write_text(DATED)
    digests = []
    for day in (1, 2):
        parameters = TINY["parameters"] | {"source": "words.txt", "since": datetime.date(2024, 1, day)}  # type: ignore[operator]
        content = TINY | {"name": "dated-v1", "task": "dated.py", "parameters": parameters}
        (tmp_path / "dated-v1.yaml").write_text(yaml.safe_dump(content))
        dated = load_track(str(tmp_path / "dated-v1.yaml"))
        test = dated.instances("test")
        digests.append((dated.definition.digest, baseline_key(NGram(1, 5, 4), dated, test)))
    assert len({*digests[0], *digests[1]}) == 4


def test_instances_that_changed_since_freezing_are_refused(fresh: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = {"digest": fresh.definition.digest, "fingerprints": dict.fromkeys(SPLITS, "0" * 64)}
    monkeypatch.setattr(fresh, "frozen", frozen)
    with pytest.raises(UserError, match="the test split of tiny-v1 has the fingerprint .* results cannot be compared"):
        fresh.instances("test")


def test_a_split_that_does_not_fit_in_memory_is_one_line(fresh: Track, monkeypatch: pytest.MonkeyPatch) -> None:
    def generate(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(type(fresh.task), "generate", generate)
    with pytest.raises(UserError, match="^the test split of tiny-v1, .* instances of up to .* tokens, does not fit in"):
        fresh._generate("test")


def test_the_digest_sees_every_field() -> None:
    digests = set()
    for section, key, value in [("splits", "seed", 4), ("budget", "train_tokens", 1), ("parameters", "max_length", 9)]:
        content = copy.deepcopy(TINY)
        content[section][key] = value  # type: ignore[index]
        digests.add(Definition(**content).digest)  # type: ignore[arg-type]
    digests.add(Definition(**TINY).digest)  # type: ignore[arg-type]
    assert len(digests) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [x\n", r"bad.yaml:2: broken YAML"),
        ("name: x\n\tbudget: 3\n", r"bad.yaml:2: broken YAML"),
        ("- 1\n", "a track is a mapping of fields, not list"),
        ("name: tiny-v1\n", "'task' is missing"),
        ("\x00", "bad.yaml"),
    ],
)
def test_broken_files_are_refused_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        load_track(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budgt": {}}, "unknown key 'budgt'; did you mean 'budget'"),
        ({"splits": {"train": 1, "validation": 2, "tset": 2, "seed": 0}}, "'splits.test' is missing"),
        ({"splits": {"train": "many", "validation": 2, "test": 2, "seed": 0}}, "splits.train: .*valid integer"),
        ({"splits": {"train": 1, "validation": 2, "test": 1, "seed": 0}}, "splits.test: .*greater than or equal to 2"),
        ({"task": "pfaa"}, "unknown task 'pfaa'; did you mean 'pfa'"),
        ({"parameters": {"max_sates": 3}}, "unknown key 'max_sates'; did you mean 'max_states'"),
        ({"main_score": "tvdd"}, "unknown main_score 'tvdd'; did you mean 'tvd'"),
        (
            {"name": "no version"},
            "name: a track's name has .* and ends as in 'my-task-v1' \\(given 'no version'\\)",
        ),
        ({"budget": {"train_tokens": 0}}, "budget.train_tokens: .*greater than or equal to 1"),
    ],
)
def test_wrong_fields_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump({**TINY, **change}))
    with pytest.raises(UserError, match=message) as caught:
        load_track(str(path))
    assert "\n" not in str(caught.value)


def test_a_score_that_nothing_defines_is_refused_at_once(tmp_path: Path) -> None:
    """Before anything is made or trained; else a run would end in a KeyError after all its training."""
    (tmp_path / "mine.py").write_text(
        "from regbench.tasks.pfa import PFA\nclass Mine(PFA):\n    scores = ('nll', 'tvdd')\n"
    )
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({**TINY, "task": str(tmp_path / "mine.py"), "main_score": "nll"})
    )
    with pytest.raises(UserError, match="Mine: the score 'tvdd' is no metric or group score; did you mean 'tvd'"):
        load_track(str(tmp_path / "mine.yaml"))


def test_unknown_splits_suggest_the_nearest_and_what_is_no_track_is_refused(tiny: Track) -> None:
    with pytest.raises(UserError, match="unknown split 'tests'; did you mean 'test'"):
        tiny.instances("tests")
    with pytest.raises(UserError, match="unknown split 'None'; known: test, train, validation"):
        tiny.instances(None)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="cannot read nowhere.yaml"):
        load_track("nowhere.yaml")
    with pytest.raises(UserError, match="a track is a name or the path of a YAML file, not ndarray"):
        load_track(tiny.instances("test").tokens)  # type: ignore[arg-type]


def test_a_track_with_other_parameters_is_one_of_its_own(tiny_file: Path) -> None:
    """Its name says which, and it is not frozen. With the same parameters it is the track itself."""
    other = load_track("recall-reach-v1?n_keys=256&beyond=[96]")
    assert (other.name, other.version, other.frozen) == ("recall-reach-n-keys-256-beyond-96-v1", 1, None)
    assert other.task.parameters.model_dump() == {
        **load_track("recall-reach-v1").task.parameters.model_dump(),
        "n_keys": 256,
        "beyond": (96,),
    }
    assert load_track(other.address).definition == other.definition
    assert variant("recall-reach-v1?n_keys=256", {"beyond": [96]}) == other.address
    same = load_track("recall-reach-v1?n_keys=192")
    assert (same.name, same.address, same.frozen is None) == ("recall-reach-v1", "recall-reach-v1", False)
    own = load_track(variant(str(tiny_file), {"max_states": 3}))
    assert (own.name, own.address) == ("tiny-max-states-3-v1", f"{tiny_file}?max_states=3")
    long = load_track(
        variant(str(tiny_file), {"max_states": 3, "max_length": 7, "max_edges": 3, "max_strings": 4, "min_strings": 1})
    )
    assert re.fullmatch("tiny-[0-9a-f]{8}-v1", long.name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("recall-reach-v1?n_kyes=3", "unknown key 'n_kyes'; did you mean 'n_keys'"),
        (
            "recall-reach-v1?n_keys",
            "after '\\?' a track has parameters as NAME=VALUE, with '&' between them, not 'n_keys'",
        ),
        ("recall-reach-v1?n_keys=[", "recall-reach-v1: the value of 'n_keys' is broken: \\["),
        ("recall-reech-v1?n_keys=3", "unknown track 'recall-reech-v1'; did you mean 'recall-reach-v1'"),
    ],
)
def test_wrong_changes_are_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_track(name)
