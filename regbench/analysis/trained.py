"""The trained models of a run folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from regbench.checks.subject import differ
from regbench.config import OF_TRAINING, parted, read_run
from regbench.models.backbone import Backbone
from regbench.models.build import build, resolve_options
from regbench.models.model import Model, ModelPredictor, device_of, manual_seed, token_tensor
from regbench.models.predictor import check_tokens, check_vectors
from regbench.results import TrackRecord, read_result
from regbench.tasks.base import VectorIO
from regbench.tracks import Track, load_track, track_names
from regbench.training.checkpoint import fits, load_notes, load_tensors, load_weights
from regbench.utils import registry
from regbench.utils.arrays import FloatArray
from regbench.utils.errors import UserError
from regbench.utils.folder import Folder
from regbench.utils.guard import YAML_BYTES, Refused, parse_plain_yaml


@dataclass(frozen=True)
class Trained:
    """A trained model in evaluation mode."""

    folder: Path  # the run folder
    architecture: str  # as `--arch` named it
    seed: int  # the seed it was trained with
    track: Track  # the track of the run
    model: Model  # the model, on the CPU
    trained_on: str | None = None  # the track it was trained on, if `track` is another one

    @property
    def name(self) -> str:
        """The name of the architecture."""
        return registry.short_name(self.architecture)

    def logits(self, tokens: NDArray[Any] | Tensor) -> Tensor:
        """The logits (B, L, V) of tokens (B, L): those at t are for token t, and made without it. Of vectors, the predictions."""
        with torch.no_grad():
            out: Tensor = self.model.eval()(token_tensor(self._checked(tokens), device_of(self.model)))
        return out.cpu()

    def predict(self, tokens: NDArray[Any] | Tensor) -> FloatArray:
        """The distributions (B, L, V) of tokens (B, L): row t is for token t, made without it. Of vectors, the predictions."""
        return ModelPredictor(self.model, device_of(self.model)).predict(self._checked(tokens))

    def _checked(self, tokens: NDArray[Any] | Tensor) -> NDArray[Any]:
        """Tokens or vectors as an array."""
        io, array = self.track.task.io, np.asarray(tokens)
        array = check_vectors(array, io.d_in) if isinstance(io, VectorIO) else check_tokens(array, io.vocab_size)
        if not array.size:
            raise UserError(f"there are no tokens in an array of the shape {array.shape}")
        return array

    def stream(self, tokens: Iterable[int]) -> Iterator[FloatArray]:
        """Reads one token at a time through the recurrent form.

        Yields the distribution (V,) of the first token, then after each token that of the next. A token is taken after the
        distribution before it was given out, so that a caller can choose it. A UserError if the architecture has no recurrent
        form, or a token is outside of the vocabulary.
        """
        model: Any = self.model.eval()
        if not hasattr(model, "step") or self.track.task.io.kind != "tokens":
            raise UserError(f"'{self.architecture}' on {self.track.name} has no recurrent form to stream by")
        state, token, waiting = model.init_state(1), self.track.task.io.separator, iter(tokens)
        while True:
            with torch.no_grad():
                logits, state = model.step(torch.tensor([token]), state)
            yield cast(FloatArray, logits[0].double().softmax(-1).numpy())
            try:
                token = next(waiting)
            except StopIteration:
                return
            check_tokens(np.array([[token]]), self.track.task.io.vocab_size)


def load(
    folder: str | Path,
    seed: int | None = None,
    arch: str | Path | type | None = None,
    *,
    split: str = "validation",
    track: str | None = None,
) -> Trained:
    """The trained model of a run folder, on the CPU.

    Args:
        folder: The run folder.
        seed: One of its seeds. None: the first.
        arch: The architecture, as `regbench.run` takes it: needed for a class of another program, and where a file has moved.
            None: what the run names.
        split: The split that the model will read. It must be as it was.
        track: Its name or file. None: what the run names.

    Returns:
        The model, with `predict`, `logits` and `stream`. `regbench.evaluate` takes it as it is.

    Raises:
        UserError: The folder holds no run, or not this seed. Or something has changed since: the architecture does not fit the
            weights, the track has another definition, or the split has other instances.
    """
    folder = Path(folder)
    config = read_run(folder)
    if seed is None:
        seed = config.seeds[0]
    if seed not in config.seeds:
        raise UserError(f"{folder} has no seed {seed}; its seeds are {', '.join(map(str, config.seeds))}")
    name = f"seed-{seed}/checkpoint.safetensors"
    path = folder / name
    if not path.exists():
        raise UserError(f"{folder} has not trained seed {seed} to the end: there is no {path.name}")
    loaded = load_track(track or config.track)
    file, _ = registry.as_file(config.architecture)
    if arch is None and file is not None and not file.exists():
        raise UserError(
            f"{folder} is of the architecture in {file}, which is not here: regbench.load(folder, arch='FILE.py')"
        )
    cls = registry.load(registry.ARCHITECTURE, str(arch) if isinstance(arch, Path) else arch or config.architecture)
    if (folder / "result.json").exists():
        result = read_result(folder)
        _check_track(folder, result.track, loaded, split)
        options = result.architecture.options  # defaults may have changed since
    else:
        _, options = parted(config.settings, OF_TRAINING)
    try:
        sizes = Folder(folder).tensor_sizes(name)
    except Refused as error:
        raise UserError(f"cannot read the checkpoint {path}: {str(error).removeprefix(f'{name}: ')}") from None
    owner = load_notes(path).get("architecture", config.architecture)
    if owner != config.architecture:
        raise UserError(f"the weights in {path} are those of '{owner}', not of '{config.architecture}'")
    own, io = resolve_options(cls, options), loaded.task.io
    try:  # code that is not built in need not build without memory
        if registry.is_built_in(registry.ARCHITECTURE, cls) and not fits(sizes, cls, own, io):
            raise RuntimeError
        model = build(cls, own, io)
        load_weights(model, load_tensors(path)[0], str(path))
    except RuntimeError:
        raise UserError(f"the weights in {path} are not those of '{config.architecture}' as it is now") from None
    return Trained(folder, config.architecture, seed, loaded, model.eval())


def load_named(
    folder: str | Path,
    seed: int | None,
    split: str,
    *,
    architecture: str | None = None,
    track: str | None = None,
    read_track: bool = False,
) -> Trained:
    """As `load`, but no file is executed that only the folder names: the folder may be a stranger's.

    `architecture` (FILE.py[:CLASS]) and `track` (a YAML file) name what is not built in. With `read_track` the track's file that
    the folder names is read where nobody names one; its task must be built in.
    """
    config = read_run(Path(folder))
    if files := registry.files_in(config.settings):
        raise UserError(f"{folder} takes the file {files[0]}, which regbench.load(folder) alone executes")
    if architecture is None and registry.is_file(config.architecture):
        raise UserError(
            f"{folder} is of the architecture in the file {config.architecture}, which is executed only if you name it: "
            f"--arch {config.architecture}"
        )
    if track is None and not _is_built_in(config.track) and not (read_track and _is_data(config.track)):
        raise UserError(
            f"{folder} is on the track {config.track}, which is no built-in one and is loaded only if you name its file: "
            f"--track {config.track}"
        )
    return load(folder, seed, architecture, split=split, track=track)


def load_to_ask(
    folder: str | Path, seed: int | None, split: str, *, architecture: str | None, track: str | None
) -> Trained:
    """As `load_named`, to be asked about another track, if `track` is not the run's own."""
    own = own_track(folder, track)
    trained = load_named(folder, seed, split, architecture=architecture, track=own, read_track=True)
    return trained if track is None or track == own else on_track(trained, track)


def run_names(folders: Sequence[str | Path]) -> list[str]:
    """What each run is called: the name of its folder, with as many parents as make the names different."""
    paths = [Path(folder).resolve() for folder in folders]
    for folder, path in zip(folders, paths, strict=True):
        if paths.count(path) > 1:
            raise UserError(f"{folder} is given twice")
    depths = range(1, max(len(path.parts) for path in paths) + 1)
    each = (["/".join(path.parts[-depth:]) for path in paths] for depth in depths)
    return next(names for names in each if len(set(names)) == len(names))


def own_track(folder: str | Path, given: str | None) -> str | None:
    """The track that a caller names, if the run's own is not loaded without a name; else None: it names another one."""
    own = read_run(Path(folder)).track
    return None if _is_built_in(own) or _is_data(own) else given


def _is_built_in(track: str) -> bool:
    """Whether it is a built-in track, or one with other parameters, as in "recall-reach-v1?n_keys=64"."""
    return track.partition("?")[0] in track_names()


def _is_data(track: str) -> bool:
    """Whether a track's file can be read without executing anything: it is a small YAML file, and its task is built in."""
    path = Path(track)
    try:
        content = parse_plain_yaml(Folder(path.parent).read(path.name, YAML_BYTES), path.name)
        return not registry.is_file(str(content["task"]))
    except (UserError, KeyError, TypeError):
        return False


def on_track(trained: Trained, name: str) -> Trained:
    """The same model, to be asked about another track with the same tokens."""
    track, io = load_track(name), trained.track.task.io
    if replace(track.task.io, max_length=io.max_length) != io:
        raise UserError(f"{trained.folder} was trained on {trained.track.name}; {track.name} has other tokens")
    if track.task.io.max_length > io.max_length:
        trained = replace(trained, model=_with_room(trained, track))
    return replace(trained, track=track, trained_on=trained.track.name)


def _with_room(trained: Trained, track: Track) -> Model:
    """The same model, made for the longer instances of a track. It must predict the shorter ones as before."""
    model: Any = trained.model
    longer = build(_class_of(model), model.options, track.task.io).eval()
    tokens = token_tensor(trained.track.instances("validation").tokens[:1])
    try:
        longer.load_state_dict(model.state_dict())
        with torch.no_grad():
            same = not differ(model(tokens), longer(tokens))
    except RuntimeError:  # weights of another shape
        same = False
    if not same:
        raise UserError(
            f"{trained.folder} was trained with instances of {model.io.max_length} at most, and what it computes depends on that "
            f"length; those of {track.name} have {track.task.io.max_length}"
        )
    return longer


def untrained(trained: Trained) -> Model:
    """The model that a trained one was before its training: the same architecture, options and seed."""
    model: Any = trained.model
    with torch.random.fork_rng(devices=[]):
        manual_seed(trained.seed)
        return build(_class_of(model), model.options, model.io).eval()


def _class_of(model: Any) -> type[Any]:
    return type(model.blocks[0].mixer) if type(model) is Backbone else type(model)


def _check_track(folder: Path, record: TrackRecord, track: Track, split: str) -> None:
    """Refuses a finished run of another definition of the track, or of other instances of the split."""
    if record.name != track.name:
        raise UserError(
            f"{folder} is of another track: its result is on {record.name}, its config.yaml asks for {track.name}"
        )
    if record.digest != track.definition.digest:
        raise UserError(
            f"{folder} is of another track: {track.name} was changed since (digest {record.digest[:12]}, now "
            f"{track.definition.digest[:12]})"
        )
    then = record.fingerprints.get(split, "none")
    if then != (now := track.instances(split).fingerprint):
        raise UserError(
            f"{folder} is of other {split} instances of {track.name}: its text or what makes them has changed since "
            f"(fingerprint {then[:12]}, now {now[:12]})"
        )
