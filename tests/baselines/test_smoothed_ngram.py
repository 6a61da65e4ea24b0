"""n-grams that stand beside results on text: the rule is tested in test_ngram.py, here where they stand and what they are for."""

from __future__ import annotations

import numpy as np

from baselines.ngram import NGram
from baselines.smoothed_ngram import SmoothedNGram
from regbench.metrics.scores import score
from regbench.tracks import Track


def test_they_stand_only_where_the_truth_is_unknown(tiny: Track, text_track: Track) -> None:
    assert SmoothedNGram.defaults(tiny.task, tiny.instances("test")) == []
    there = SmoothedNGram.defaults(text_track.task, text_track.instances("test"))
    assert [(one.name, one.order, one.anchor) for one in there] == [
        ("unigram witten-bell", 1, None),
        ("2-gram witten-bell", 2, None),
        ("3-gram witten-bell", 3, None),
    ]


def test_they_are_the_n_gram_of_that_smoothing_and_ahead_in_nats(text_track: Track) -> None:
    test, io = text_track.instances("test"), text_track.task.io
    one = SmoothedNGram(2, io.vocab_size, io.separator).predict(test.tokens)
    np.testing.assert_array_equal(one, NGram(2, io.vocab_size, io.separator, "witten-bell").predict(test.tokens))
    plain = NGram(2, io.vocab_size, io.separator).predict(test.tokens)
    assert score(text_track.task, test, [one])["nll"].value < score(text_track.task, test, [plain])["nll"].value - 1
