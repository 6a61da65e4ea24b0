import numpy as np
import pytest

from baselines.ngram import SMOOTHINGS, NGram
from baselines.smoothed_ngram import SmoothedNGram
from regbench.metrics.scores import score
from regbench.tasks.base import Splits
from regbench.tasks.pfa import PFA
from tests.baselines.conftest import SEPARATOR, VOCAB, random_tokens, uniform

ORDERS = [1, 2, 3, 4, 5, None]
MODELS = [(order, s) for order in ORDERS for s in SMOOTHINGS if (order, s) != (None, "add-one")]


# --- The same models, written from the paper: everything is counted again at every prefix. ---


def split(prefix):
    """The strings of a prefix, the last one unfinished."""
    strings = [[]]
    for token in prefix:
        if token == SEPARATOR:
            strings.append([])
        else:
            strings[-1].append(token)
    return strings


def counted(strings, size, padding):
    """How often each tuple of `size` tokens occurs in the strings, after `padding` padding tokens each."""
    counts = {}
    for string in strings:
        padded = ["_"] * padding + string
        for i in range(len(padded) - size + 1):
            gram = tuple(padded[i : i + size])
            counts[gram] = counts.get(gram, 0) + 1
    return counts


def algorithm_1(prefix, order):
    """{symbol: probability}, by the paper's recursion (lines 10-15, Eq. 95 and 96)."""
    strings = split(prefix)
    seen = sorted({symbol for string in strings for symbol in string})
    counts = {n: counted(strings, n, order - 1) for n in range(1, order + 1)}
    context = (["_"] * (order - 1) + strings[-1])[len(strings[-1]) :]
    everything = sum(counts[1].values())

    def probability(symbols, context):
        n = len(context) + 1
        total = counts[n - 1][context] if n > 1 else everything
        follows = {w: counts[n][(*context, w)] / total for w in seen if (*context, w) in counts[n]}
        unseen = [w for w in seen if w not in follows]
        p = {w: follows[w] for w in symbols if w in follows}
        if unseen and n > 1:
            beta = 1 - sum(follows.values())
            shorter = probability(unseen, context[1:])
            p |= {w: beta * shorter[w] / sum(shorter.values()) for w in symbols if w in unseen}
        return p

    p = probability(seen, tuple(context))
    return {w: value / sum(p.values()) for w, value in p.items()}


def interpolated(prefix, order, smoothing):
    """{symbol: probability} by the formulas of Chen and Goodman; a string's start is one token of context."""
    strings = [["_", *string] for string in split(prefix)]
    longest = len(prefix) + 1 if order is None else order - 1
    before = {}  # (context, symbol) -> the tokens found before it, with repetition
    for string in strings:
        for i in range(1, len(string)):
            for j in range(max(0, i - longest), i + 1):
                before.setdefault((tuple(string[j:i]), string[i]), []).append(string[j - 1] if j > 0 else None)
    symbols = range(VOCAB - 1)
    current = strings[-1]
    p = dict.fromkeys(symbols, 1 / len(symbols))
    for size in range(min(longest, len(current)) + 1):
        context = tuple(current[len(current) - size :])
        c = {v: before.get((context, v), []) for v in symbols}
        if smoothing == "kneser-ney" and size < longest and context[:1] != ("_",):
            c = {v: set(tokens) for v, tokens in c.items()}
        n, distinct = sum(map(len, c.values())), sum(len(t) > 0 for t in c.values())
        if smoothing == "add-one":
            p = {v: (len(c[v]) + 1) / (n + len(symbols)) for v in symbols}
        elif n > 0 and smoothing == "witten-bell":
            p = {v: (len(c[v]) + distinct * p[v]) / (n + distinct) for v in symbols}
        elif n > 0:
            p = {v: (max(len(c[v]) - 0.75, 0) + 0.75 * distinct * p[v]) / n for v in symbols}
    return p


def slow(tokens, order, smoothing):
    probs = np.zeros((*tokens.shape, VOCAB))
    for b, row in enumerate(tokens.tolist()):
        for t in range(len(row)):
            if smoothing == "reserved":
                p = algorithm_1(row[:t], len(row) + 2 if order is None else order)
            else:
                p = interpolated(row[:t], order, smoothing)
            probs[b, t] = [p.get(v, 0.0) for v in range(VOCAB)] if p else uniform()
    return probs


@pytest.mark.parametrize(("order", "smoothing"), MODELS)
def test_is_what_recounting_every_prefix_gives(order, smoothing, tokens):
    probs = NGram(order, VOCAB, SEPARATOR, smoothing).predict(tokens)
    np.testing.assert_allclose(probs, slow(tokens, order, smoothing), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("order", [2, 3, None])
def test_is_what_recounting_gives_where_contexts_repeat(order):
    """Two symbols: contexts come back at any depth, and all seen symbols have followed most of them."""
    tokens = random_tokens(3, (3, 48), n_symbols=2, share=0.1)
    for smoothing in ("reserved", "kneser-ney"):
        probs = NGram(order, VOCAB, SEPARATOR, smoothing).predict(tokens)
        np.testing.assert_allclose(probs, slow(tokens, order, smoothing), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_an_order_beyond_the_length_is_as_one_of_the_length(smoothing):
    row = np.array([[0, 1, 0, 1, 0, 2, SEPARATOR, 0, 1, 0, 1]])
    given = [NGram(order, VOCAB, SEPARATOR, smoothing).predict(row) for order in (12, 10**30)]
    np.testing.assert_array_equal(*given)


def test_the_separator_may_be_any_token(tokens):
    """Renaming the tokens renames the columns."""
    renamed = (tokens + 2) % VOCAB
    separator = (SEPARATOR + 2) % VOCAB
    for smoothing in SMOOTHINGS:
        probs = NGram(3, VOCAB, separator, smoothing).predict(renamed)
        original = NGram(3, VOCAB, SEPARATOR, smoothing).predict(tokens)
        np.testing.assert_array_equal(np.roll(probs, -2, -1), original)


def test_small_and_foreign_integers_serve(tokens):
    model = NGram(3, VOCAB, SEPARATOR)
    np.testing.assert_array_equal(
        model.predict(tokens.astype(np.uint8)[:, ::-1]), model.predict(tokens[:, ::-1].copy())
    )


def test_the_defaults_are_told_apart():
    task = PFA(PFA.Parameters(n_symbols=6, max_alphabet=6))
    defaults = NGram.defaults(task, task.generate(Splits(train=1, validation=1, test=2, seed=0), "test"))
    assert [model.name for model in defaults] == ["unigram", "2-gram", "3-gram"]
    assert [model.anchor for model in defaults] == ["start", None, None]
    assert [model.vocab_size for model in defaults] == [7, 7, 7]
    models = [NGram(order, VOCAB, SEPARATOR, s) for order, s in MODELS]
    assert len({model.name for model in models}) == len({str(model.options) for model in models}) == len(models)


# --- Those that stand beside results on text. ---


def test_they_stand_only_where_the_truth_is_unknown(tiny, text_track):
    assert SmoothedNGram.defaults(tiny.task, tiny.instances("test")) == []
    there = SmoothedNGram.defaults(text_track.task, text_track.instances("test"))
    assert [(one.name, one.order, one.anchor) for one in there] == [
        ("unigram witten-bell", 1, None),
        ("2-gram witten-bell", 2, None),
        ("3-gram witten-bell", 3, None),
    ]


def test_they_are_the_n_gram_of_that_smoothing_and_ahead_in_nats(text_track):
    test, io = text_track.instances("test"), text_track.task.io
    one = SmoothedNGram(2, io.vocab_size, io.separator).predict(test.tokens)
    np.testing.assert_array_equal(one, NGram(2, io.vocab_size, io.separator, "witten-bell").predict(test.tokens))
    plain = NGram(2, io.vocab_size, io.separator).predict(test.tokens)
    assert score(text_track.task, test, [one])["nll"].value < score(text_track.task, test, [plain])["nll"].value - 1
