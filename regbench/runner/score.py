"""Runs that train nothing: any predictor, or a pretrained language model, scored as a run scores its own model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from regbench.config import unused
from regbench.evaluation.predictions import StoredPredictions
from regbench.report.page import write_report
from regbench.results import Result
from regbench.tracks import Track, load_track
from regbench.training.progress import Reporter
from regbench.training.terminal import shown
from regbench.utils.files import exclusive, explain_writing, require_writable, write_json
from regbench.utils.guard import check_plain

if TYPE_CHECKING:
    from regbench.evaluation.given import Kind, Predicts


def evaluate(
    track: str | Path | Track,
    predictor: Any,
    predicts: Predicts | None = None,
    kind: Kind | None = None,
    *,
    split: Literal["test", "validation"] = "test",
    name: str | None = None,
    device: str = "cpu",
    baselines: Sequence[str] | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Scores any predictor beside the baselines of a track. Nothing is trained.

    Args:
        track: A loaded track, the name of a built-in one, or the path of a YAML file.
        predictor: A PyTorch module or a callable, from tokens (B, L) int64 to rows (B, L, V) or to an object with `.logits`; or
            an array (N, L, V) with the rows of every instance; or one of regbench's own models or predictors, which need
            neither `predicts` nor `kind`. For a task of vectors the rows are the predicted vectors.
        predicts: "this": row t predicts token t, and was made without it. "next": row t predicts token t + 1. A model of the
            next token is given a separator before the tokens. An array of the next token has no row for the first token,
            which counts as uniform.
        kind: What a row holds: "logits", "log_probabilities" or "probabilities". Left out for a task of vectors.
        split: The instances that are predicted.
        name: The name in tables. By default the name of the class or of the function.
        device: Where a callable finds its tokens. A module finds them where its weights are.
        baselines: Those that stand beside it, by their names in tables; () for none. None: all of the track.
        out: A new folder for `result.json`, the predictions, the pictures and `report.html`. None: nothing is written.
        reporter: Is told what happens. By default as in `run`.

    Returns:
        The result. It has one record in `seeds`, and `evaluation` says how it was made.

    Raises:
        UserError: The predictor sees what it predicts, is shifted by one place, or its rows are not what they are said to be.
            Or no result can hold the name.
    """
    loaded = track if isinstance(track, Track) else load_track(track)
    check_plain(name, "name")  # a result with it could not be read
    from regbench.analysis.trained import Trained  # a run of our own training needs none of these
    from regbench.evaluation.any_predictor import evaluate_predictor

    if isinstance(predictor, Trained):
        predictor, name = predictor.model, name or predictor.name
    folder = _writable(out)
    with shown(reporter) as reporter:
        result, stored = evaluate_predictor(
            loaded, predictor, predicts, kind, split, name, device, reporter.phase, baselines
        )
        _keep_evaluation(folder, loaded, result, [stored])
    return result


def evaluate_language_model(
    track: str,
    name: str,
    split: Literal["test", "validation"] = "test",
    *,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    baselines: Sequence[str] | None = None,
    out: str | Path | None = None,
    reporter: Reporter | None = None,
) -> Result:
    """Scores a causal language model of the Hugging Face Hub, or of a folder, beside the baselines of a track.

    Args:
        track: The name of a built-in track of symbols, or the path of a YAML file.
        name: `hf:NAME` or `hf:FOLDER`.
        split: The instances that are predicted.
        settings: Fields of `regbench.evaluation.language_model.Prompting`, such as `mappings`, `prompt` and `limit`.
        device: "cpu", "cuda", or "auto".
        baselines: Those that stand beside it, by their names in tables; () for none. None: all of the track.
        out: A new folder for `result.json`, the predictions, the pictures and `report.html`. None: nothing is written.
        reporter: Is told what happens. By default as in `run`.

    Returns:
        The result. It has one record in `seeds` for each mapping of symbols to tokens.

    Raises:
        UserError: The model cannot be loaded, or cannot be shown the instances of this track.
    """
    from regbench.evaluation import language_model

    loaded, folder = load_track(track), _writable(out)
    with shown(reporter) as reporter:
        result, stored = language_model.evaluate_language_model(
            loaded, name, split, dict(settings or {}), device, reporter.phase, baselines
        )
        _keep_evaluation(folder, loaded, result, stored)
    return result


def _writable(out: str | Path | None) -> Path | None:
    """The folder that an evaluation will be written to, where there is one. It is made at the end."""
    folder = unused(out)
    if folder is not None:
        require_writable(folder)
    return folder


def _keep_evaluation(folder: Path | None, track: Track, result: Result, stored: Sequence[StoredPredictions]) -> None:
    """Writes the predictions of each seed, the pictures and the page, and then the result."""
    if folder is None:
        return
    with explain_writing(folder), exclusive(folder):
        unused(folder)  # another run may have begun there meanwhile
        for record, predictions in zip(result.seeds, stored, strict=True):
            predictions.save(folder / f"seed-{record.seed}" / "predictions.npz")
        write_report(folder, result, track)
        write_json(folder / "result.json", result.model_dump(mode="json"))
