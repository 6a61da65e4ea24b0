"""The entry schema: one form, one digest, one name, and sums that give the published digits again."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from regbench.leaderboard.entry import Entry, canonical, digest_of, parse_entry, rounded
from regbench.utils.errors import UserError
from regbench.utils.guard import Refused
from tests.leaderboard.attacks import at, leaves, put
from tests.leaderboard.conftest import Made


def test_it_reads_back_as_it_was_written(lstm: Made) -> None:
    text = lstm.path.read_text()
    entry = parse_entry(json.loads(text), "")
    assert entry == lstm.entry
    assert canonical(entry.content()) == text
    assert entry.digest == digest_of(entry.content())
    assert text.startswith('{\n "schema_version": 2,')


def test_the_form_does_not_depend_on_the_order_in_which_things_were_put_in() -> None:
    a: dict[str, Any] = {"b": [1, 2.5, "é"], "a": {"y": 1, "x": [{"q": None}, {}]}, "schema_version": 1}
    b = {"schema_version": 1, "a": {"x": [{"q": None}, {}], "y": 1}, "b": [1, 2.5, "é"]}
    assert canonical(a) == canonical(b)
    assert json.loads(canonical(a)) == a
    lines = canonical(a).splitlines()
    assert lines[:4] == ["{", ' "schema_version": 1,', ' "a": {', '  "x": [']
    assert lines[4:9] == ["   {", '    "q": null', "   },", "   {}", "  ],"]
    assert lines[9:] == ['  "y": 1', " },", ' "b": [1,2.5,"\\u00e9"]', "}"]


def test_every_leaf_is_under_the_digest(lstm: Made) -> None:
    content = lstm.entry.content()
    places = [place for place in leaves(content) if place != ("digest",)]
    assert len(places) > 1000
    for place in places[:: len(places) // 50]:
        assert digest_of(put(content, place, "other")) != content["digest"], place
        assert at(content, place) != "other"


def test_scores_come_out_again_to_the_published_digits(lstm: Made) -> None:
    entry = lstm.entry
    for i, seed in enumerate(entry.result.seeds):
        for metric, record in seed.scores.items():
            again = entry.instances.score(i, metric)
            assert again.value == pytest.approx(record.value, rel=6e-7, abs=1e-12)
            assert again.stderr == pytest.approx(record.stderr, rel=1e-4, abs=1e-7)
    mean = entry.instances.mean("tvd")
    assert mean.shape == (24,)
    assert 3 * mean.sum() == pytest.approx(sum(np.sum(one["tvd"]) for one in entry.instances.sums))
    assert entry.instances.counts_of("tvd").sum() == sum(entry.instances.counts)


def test_sums_are_rounded_to_digits_not_to_decimals() -> None:
    assert rounded(123.456789) == 123.4568
    assert rounded(1.23456789e-5) == 1.234568e-5
    assert rounded(0.0) == 0.0


def with_options(entry: Entry, **options: Any) -> Entry:
    architecture = entry.result.architecture
    other = architecture.model_copy(update={"options": {**architecture.options, **options}})
    return entry.model_copy(update={"result": entry.result.model_copy(update={"architecture": other})})


def test_the_digits_are_of_what_was_trained_and_nothing_else(lstm: Made) -> None:
    entry = lstm.entry
    assert entry.file_name == f"{entry.name}-{entry.configuration_digest[:8]}.json" == lstm.path.name
    assert with_options(entry, d_model=16).configuration_digest != entry.configuration_digest
    elsewhere = entry.result.environment.model_copy(update={"processor": "another", "backend": {"x": "naive"}})
    again = entry.result.model_copy(update={"environment": elsewhere, "seeds": entry.result.seeds[:2]})
    assert entry.model_copy(update={"result": again}).configuration_digest == entry.configuration_digest


@pytest.mark.parametrize("name", ["", "A", "a b", "../a", "a/b", "a..b", "a-", ".a", "é", "a\n", "a" * 81])
def test_names_are_safe_for_files_tables_and_pages(lstm: Made, name: str) -> None:
    entry = lstm.entry
    with pytest.raises(UserError, match="cannot name an entry") as caught:
        Entry.seal(name, entry.configuration, entry.result, entry.instances)
    assert "--name" in str(caught.value)
    with pytest.raises(Refused, match="name"):
        parse_entry({**entry.content(), "name": name}, "x.json")


def test_metrics_are_in_the_order_in_which_they_are_always_shown(lstm: Made) -> None:
    assert lstm.entry.metrics == ["legal_accuracy", "token_accuracy", "tvd", "nll"]
