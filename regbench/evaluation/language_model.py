"""Language models of the Hugging Face Hub on a track, untrained by regbench: each symbol becomes one token of their vocabulary.

Which tokens stand for the symbols is drawn at random, several times. A model reads the tokens of an instance behind a separator.
Its probabilities of the symbols are divided by their sum. What they leave to all other tokens is reported beside the scores.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor

from regbench.config import Seed
from regbench.data.instances import Instances
from regbench.evaluation.any_predictor import record_of, result_of, stored_of, weights_digest
from regbench.evaluation.baselines import Progress, named_baselines, score_baselines
from regbench.evaluation.given import Given
from regbench.evaluation.guards import TOLERANCE, require_bottleneck
from regbench.evaluation.predictions import StoredPredictions
from regbench.models.model import find_device, token_tensor
from regbench.results import ArchitectureRecord, Evaluation, Result
from regbench.tasks.base import TokenIO
from regbench.tracks import Track
from regbench.training.progress import now_and_then
from regbench.utils.errors import UserError, explain_validation
from regbench.utils.guard import LONGEST_STRING, check_plain
from regbench.utils.settings import Settings

PREFIX = "hf:"
"""Begins the name of a language model."""

LOGIT_BYTES = 1 << 28
"""The most memory for the logits of one call. A vocabulary may be a thousand times larger than an alphabet."""

HALF_TOLERANCE = 0.05
"""Sums in half precision depend on the length of a prompt: two predictions are equal within this share of the largest number."""

_SYMBOLS = {"letters": re.compile(r"[ ][A-Za-z]"), "words": re.compile(r"[ ][A-Za-z]{2,}")}
_BEFORE = "a"
"""The text before a symbol, where a tokenizer adds or drops a space at the beginning."""


class Prompting(Settings):
    """How a language model is shown an instance."""

    mappings: tuple[Seed, ...] = pydantic.Field(default=(0, 1, 2), min_length=1)
    """The seeds of the draws of tokens. Each is scored, as seeds are."""
    symbols: Literal["auto", "letters", "words"] = "auto"
    """What the tokens are: a space and one letter, or a space and a word. "auto": letters where they suffice."""
    separator: str = pydantic.Field(default="\n", min_length=1)
    """The text before the first symbol, and between strings. It is one token."""
    prompt: str = ""
    """A text before the separator, of at most 2,000 characters in JSON: a result holds no more."""
    precision: Literal["float32", "bfloat16"] = "float32"
    revision: str | None = None
    """A commit, branch or tag of the Hub. None: the newest."""
    limit: int | None = pydantic.Field(default=None, ge=2)
    """Only the first so many instances are scored; the baselines' scores are of the same. None: all."""

    @pydantic.field_validator("separator", "prompt")
    @classmethod
    def _fits_a_result(cls, value: str) -> str:
        if (size := len(json.dumps(value))) > LONGEST_STRING:
            raise ValueError(f"it has {size:,} characters in JSON, and a result holds {LONGEST_STRING:,}")
        return value


def _hub_answers(name: str, revision: str | None) -> bool:
    """Whether the Hub answers one short question about a model. Without network, transformers would try for a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(name, revision=revision, timeout=15.0)
    except HfHubHTTPError:
        return True  # it answers that there is no such model, or that it is not for everyone
    except Exception:  # what is raised without network depends on the library's version
        return False
    return True


class LanguageModel:
    """A causal language model of `transformers`, in its evaluation form, with its tokenizer."""

    def __init__(self, name: str, prompting: Prompting, device: torch.device) -> None:
        try:
            import transformers
        except ImportError:
            raise UserError("transformers is not installed: pip install 'regbench[hf]'") from None
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        here = Path(name).is_dir()
        if not here and name.startswith((".", "/", "~")):
            raise UserError(f"the language model {name} cannot be loaded: there is no such folder")
        reached = here or _hub_answers(name, prompting.revision)
        given = {"revision": prompting.revision, "trust_remote_code": False, "local_files_only": not reached}
        try:
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(name, **given)
            dtype = getattr(torch, prompting.precision)
            model, loading = transformers.AutoModelForCausalLM.from_pretrained(
                name, dtype=dtype, output_loading_info=True, **given
            )
        except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            reason = " ".join(lines[: 2 if lines[0].endswith(":") else 1])
            if here and not (Path(name) / "config.json").is_file():
                reason = "the folder has no config.json"
            if not reached:
                reason = "it was never downloaded, and the Hugging Face Hub cannot be reached: check the network"
            raise UserError(f"the language model {name} cannot be loaded: {reason}") from None
        if missing := sorted(loading["missing_keys"]):  # transformers would draw them at random
            raise UserError(f"the language model {name} lacks {len(missing)} of its weights, such as {missing[0]}")
        self.model, self.device = model.eval().to(device), device
        self._config = model.config.get_text_config()  # of a model that also reads images a part of it
        start = self.tokenizer.bos_token_id
        self._prefix = [*([] if start is None else [start]), *self._encode(prompting.prompt)]
        self._separator = self._one_token(prompting.separator)
        self.in_half = prompting.precision != "float32"

    def _encode(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids if text else []
        return found

    def _behind(self, text: str) -> list[int]:
        """The tokens of a text within a text. Tokenizers like Llama 2's put a space before a text that stands alone."""
        before, found = self._encode(_BEFORE), self._encode(_BEFORE + text)
        return found[len(before) :] if found[: len(before)] == before else []

    def _one_token(self, text: str) -> int:
        found = self._encode(text)
        if len(found) != 1 and len(behind := self._behind(text)) == 1:
            found = behind
        if len(found) != 1:
            raise UserError(f"the separator {text!r} is {len(found)} tokens of this model, not one: give another one")
        return found[0]

    def candidates(self, symbols: str) -> NDArray[np.int64]:
        """The tokens that can stand for symbols, sorted: each is encoded as itself alone, or, if none is, within a text."""
        ids = sorted(set(self.tokenizer.get_vocab().values()) - {*self.tokenizer.all_special_ids, self._separator})
        before = self._encode(_BEFORE)
        for encode, start in ((self._encode, []), (self._behind, before)):
            texts = self.tokenizer.batch_decode([[*start, one] for one in ids])
            cut = len(self.tokenizer.decode(start)) if start else 0
            fitting = [
                (one, t[cut:]) for one, t in zip(ids, texts, strict=True) if _SYMBOLS[symbols].fullmatch(t[cut:])
            ]
            if found := [one for one, text in fitting if encode(text) == [one]]:
                break
        return np.array(found, np.int64)

    def mappings(self, io: TokenIO, symbols: str, seeds: Sequence[int]) -> dict[int, NDArray[np.int64]]:
        """For each seed a token of the model for each token of the task, (V,), drawn without replacement.

        The separator is the separator.
        """
        counts, needed = [], io.vocab_size - 1
        for kind in ("letters", "words") if symbols == "auto" else (symbols,):
            found = self.candidates(kind)
            if len(found) >= needed:
                drawn = {seed: np.random.default_rng([seed]).permutation(found)[:needed] for seed in seeds}
                return {seed: np.insert(tokens, io.separator, self._separator) for seed, tokens in drawn.items()}
            counts.append(f"{len(found)} {kind}")
        raise UserError(f"the task has {needed} symbols, and the model's single tokens are {' and '.join(counts)}")

    def require_room(self, length: int) -> None:
        longest, whole = getattr(self._config, "max_position_embeddings", None), len(self._prefix) + length
        if longest is not None and whole > longest:
            raise UserError(f"an instance is {whole} tokens long with its prompt, and the model reads {longest}")

    def asking(
        self, mapping: NDArray[np.int64], seen: Callable[[NDArray[np.floating[Any]]], None]
    ) -> Callable[[NDArray[Any]], Tensor]:
        """A function from inputs (B, L) to the logits of the symbols (B, L, V).

        `seen` is told of each call the probability that all other tokens have, (B, L).
        """
        columns = torch.from_numpy(mapping).to(self.device)
        prefix = torch.tensor(self._prefix, dtype=torch.long, device=self.device)

        def ask(inputs: NDArray[Any]) -> Tensor:
            tokens = columns[token_tensor(inputs, self.device)]
            each = 4 * (len(prefix) + tokens.shape[1]) * int(self._config.vocab_size)
            # In half precision sums depend on the shape, and predictions on the batch: then each instance is asked alone.
            rows, most = [], 1 if self.in_half else max(1, LOGIT_BYTES // each)
            for some in tokens.split(most):
                whole = torch.cat([prefix.expand(len(some), -1), some], dim=1)
                with torch.inference_mode():
                    logits = self.model(input_ids=whole, use_cache=False).logits[:, len(prefix) :].float()
                own = logits[..., columns]
                seen((1 - (own.logsumexp(-1) - logits.logsumexp(-1)).exp()).clamp(min=0).cpu().numpy())
                rows.append(own.cpu())
            return torch.cat(rows)

        return ask

    def tokenizer_digest(self) -> str:
        """SHA-256 of the tokenizer: of its file where it has one, else of its vocabulary."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        text = backend.to_str() if backend is not None else json.dumps(sorted(self.tokenizer.get_vocab().items()))
        return hashlib.sha256(text.encode()).hexdigest()


def evaluate_language_model(
    track: Track,
    name: str,
    split: Literal["test", "validation"],
    settings: dict[str, Any],
    device: str,
    announce: Callable[[str], None],
    baselines: Sequence[str] | None = None,
) -> tuple[Result, Sequence[StoredPredictions]]:
    with explain_validation("language model", Prompting.model_fields):
        prompting = Prompting(**settings)
    check_plain([name, prompting.revision], "language model")  # a result with them could not be read
    io = track.task.io
    if not isinstance(io, TokenIO) or track.task.source_digest() is not None:
        kind = "text" if isinstance(io, TokenIO) else "vectors"
        raise UserError(f"a language model needs a track of symbols; {track.name} is of {kind}")
    require_bottleneck(name, track)
    place, plain = find_device(device), name.removeprefix(PREFIX)
    instances = track.instances(split)
    named_baselines(track, instances, baselines)  # a wrong name is told before all is predicted
    announce(f"loading {plain}")
    model = LanguageModel(plain, prompting, place)
    mappings = model.mappings(io, prompting.symbols, prompting.mappings)
    if prompting.limit is not None and prompting.limit < len(instances):
        instances = instances[: prompting.limit]
    else:  # they are all of them
        prompting = prompting.model_copy(update={"limit": None})
    model.require_room(int(instances.lengths.max()))
    predicted = {}
    for seed, mapping in mappings.items():
        what = f"predicting the {split} split of {track.name}, mapping {seed}"
        announce(f"{what}: {len(instances):,} instances")
        predicted[seed] = _predict(model, track, mapping, instances, now_and_then(what, announce))
    records = score_baselines(track, instances, announce, names=baselines)
    options = prompting.model_dump(mode="json", exclude={"mappings"}) | {
        "revision": getattr(model.model.config, "_commit_hash", None) or prompting.revision,
        "model": plain if not Path(plain).exists() else Path(plain).name,  # without the folders of this machine
        "tokenizer_sha256": model.tokenizer_digest(),
        "separator": json.dumps(prompting.separator),  # a new line is not printable
        "prompt": json.dumps(prompting.prompt),
    }
    result = result_of(
        track,
        ArchitectureRecord(
            name=plain.rstrip("/").rpartition("/")[2],
            source=type(model.model).__name__,
            source_sha256=weights_digest(model.model),
            options=options,
            parameters=sum(p.numel() for p in model.model.parameters()),
            state_bytes=None,
            state_at={},
        ),
        [
            record_of(track, instances, stored, seconds, records, seed)
            for seed, (stored, seconds, _) in predicted.items()
        ],
        records,
        Evaluation(
            given="language model",
            predicts="next",
            kind="logits",
            split=split,
            limit=prompting.limit,
            outside={str(seed): round(outside, 6) for seed, (_, _, outside) in predicted.items()},
        ),
        place,
        prompting.precision,
    )
    return result, [stored for stored, _, _ in predicted.values()]


def _predict(
    model: LanguageModel, track: Track, mapping: NDArray[np.int64], instances: Instances, progress: Progress
) -> tuple[StoredPredictions, float, float]:
    """The predictions, the seconds they took, and the mean probability that other tokens had at scored positions."""
    outside: list[NDArray[np.floating[Any]]] = []
    one = Given("language model", "next", "logits", track.task.io, model.asking(mapping, outside.append))
    started = time.perf_counter()
    tolerance = HALF_TOLERANCE if model.in_half else TOLERANCE
    stored = stored_of(one, track.task, instances, tolerance=tolerance, progress=progress)
    seconds = time.perf_counter() - started
    rows = [row for batch in outside for row in batch][: len(instances)]  # cut prompts follow
    kept = [row[: len(mask)][mask[: len(row)]] for row, mask in zip(rows, instances.scored, strict=True)]
    return stored, seconds, float(np.concatenate(kept).mean())
