"""The common backbone: embedding, blocks of mixer and feed-forward network, unembedding (ICLL Appendix A, Eq. 14-20)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from regbench.models.bottleneck import Bottleneck, BottleneckState
from regbench.models.mixer import Mixer, Options
from regbench.models.model import Model, require_positions, shift_in
from regbench.models.short_conv import ShortConv
from regbench.ops.gelu import gelu
from regbench.tasks.base import IO, VectorIO
from regbench.utils.errors import UserError

if TYPE_CHECKING:
    from regbench.ops.ngram import NGramIndex, NGramState


class FeedForward(nn.Module):
    """Two linear maps with a GELU between them, at each position. The width between them is `expand` D.

    With `short_conv` what the GELU reads is u + conv(u) for u = up(x).
    """

    def __init__(self, d_model: int, expand: int = 4, short_conv: int = 0) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, expand * d_model)
        self.down = nn.Linear(expand * d_model, d_model)
        self.conv = ShortConv(expand * d_model, short_conv) if short_conv else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) -> (B, L, D)."""
        return self.advance(x, None)[0]

    def advance(self, x: Tensor, window: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """(B, L, D) -> (B, L, D) from the window of the convolution on, and the window after it."""
        u, window = _residual(self.conv, self.up(x), window)
        return self.down(gelu(u)), window


def _residual(conv: ShortConv | None, x: Tensor, window: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """The sum x + conv(x), (B, L, D), from a window on, or from the start where it is None, and the window after it."""
    if conv is None:
        return x, None
    y, window = conv(x, conv.init_window(len(x), x.device, x.dtype) if window is None else window)
    return x + y, window


class Block(nn.Module):
    """One block: x + mixer(norm(x)), then the same with a feed-forward network if the mixer asks for one (ICLL Eq. 17-18).

    With the option `short_conv`, the mixer reads n + conv(n) for n = norm(x): a causal, depthwise convolution with a residual
    connection (Allen-Zhu 2025, arXiv 2512.17351, "Canon" layer A). With `canon` the feed-forward network has the same before it
    and before its GELU (layers C and D). Layer B, on queries, keys and values, is left to mixers: `d_conv` is theirs.
    """

    def __init__(self, mixer: Mixer, options: Options) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(options.d_model)
        self.mixer = mixer
        self.feed_forward: FeedForward | None = None
        if mixer.feed_forward:
            self.feed_forward_norm = nn.LayerNorm(options.d_model)
            self.feed_forward = FeedForward(options.d_model, short_conv=options.short_conv if options.canon else 0)
        self.dropout = nn.Dropout(options.dropout)
        self.short_conv = ShortConv(options.d_model, options.short_conv) if options.short_conv else None
        canon = options.canon and mixer.feed_forward
        self.feed_forward_conv = ShortConv(options.d_model, options.short_conv) if canon else None

    def forward(self, x: Tensor, index: NGramIndex | None = None) -> Tensor:
        """(B, L, D) -> (B, L, D). A mixer that reads tokens needs their index. A UserError if it returns no tensor like x."""
        normed, _ = _residual(self.short_conv, self.mixer_norm(x))
        mixed = self.mixer(normed, index) if self.mixer.reads_tokens else self.mixer(normed)
        _require_like(x, mixed, self.mixer)
        x = x + self.dropout(mixed)
        if self.feed_forward is not None:
            normed, _ = _residual(self.feed_forward_conv, self.feed_forward_norm(x))
            x = x + self.dropout(self.feed_forward(normed))
        return x

    def init_state(self, batch: int, device: torch.device, dtype: torch.dtype) -> Any:
        """The mixer's state before the first position; with short convolutions, the windows of their inputs and that state."""
        state = self.mixer.init_state(batch, device, dtype)
        return state if self.short_conv is None else (self.init_windows(batch, device, dtype), state)

    def init_windows(
        self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None
    ) -> list[Tensor | None]:
        """The windows of the convolutions before the first position, in the order of the block; None for what is not there."""
        within = None if self.feed_forward is None else self.feed_forward.conv
        convs = (self.short_conv, self.feed_forward_conv, within)
        return [None if conv is None else conv.init_window(batch, device, dtype) for conv in convs]

    def step(self, x: Tensor, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
        """One position of the recurrent form: (B, D), the state before it and its tokens (B,) -> (B, D) and the state after it.

        A UserError if the mixer has no step, or returns something else than a tensor like x and a state.
        """
        windows: list[Tensor | None] = [None] * 3
        if self.short_conv is not None:
            windows[:], state = state
        normed, windows[0] = _residual(self.short_conv, self.mixer_norm(x)[:, None], windows[0])
        step: Callable[..., Any] = self.mixer.step
        try:
            returned = step(normed[:, 0], state, *([tokens] if self.mixer.reads_tokens else []))
        except NotImplementedError:
            raise UserError(f"{type(self.mixer).__name__} has no step to stream by") from None
        if not isinstance(returned, tuple) or len(returned) != 2:
            name, kind = type(self.mixer).__name__, type(returned).__name__
            raise UserError(
                f"the mixer {name} returns a {kind} from step, not its output (B, D) and the state after it"
            )
        mixed, state = returned
        _require_like(x, mixed, self.mixer, " from step")
        x = x + mixed
        if self.feed_forward is not None:
            normed, windows[1] = _residual(self.feed_forward_conv, self.feed_forward_norm(x)[:, None], windows[1])
            y, windows[2] = self.feed_forward.advance(normed, windows[2])
            x = x + y[:, 0]
        return x, state if self.short_conv is None else (windows, state)


def _require_like(x: Tensor, mixed: Any, mixer: Mixer, method: str = "") -> None:
    """Refuses a mixer's output that is not a tensor of x's shape and type. Under autocast the type of its products will do.

    Otherwise a wrong width would be broadcast in silence, and a wrong type would fail in code that is not the mixer's.
    """
    if isinstance(mixed, Tensor) and mixed.shape == x.shape:
        kind = x.device.type
        if mixed.dtype == x.dtype or (
            torch.is_autocast_enabled(kind) and mixed.dtype == torch.get_autocast_dtype(kind)
        ):
            return
    who, dtype = f"the mixer {type(mixer).__name__} returns{method}", str(x.dtype).removeprefix("torch.")
    if not isinstance(mixed, Tensor):
        got = "None" if mixed is None else type(mixed).__name__
        hint = "; take its first, with [0]" if isinstance(mixed, tuple | list) and mixed else ""
        raise UserError(f"{who} {got}, not a tensor {tuple(x.shape)} of {dtype}{hint}")
    if mixed.shape != x.shape:
        raise UserError(f"{who} the shape {tuple(mixed.shape)}, not {tuple(x.shape)}")
    raise UserError(f"{who} {str(mixed.dtype).removeprefix('torch.')}, not {dtype}")


@dataclass
class StreamState:
    """The state of a model that reads one token at a time."""

    position: int  # how many tokens it has read
    mixers: list[Any]  # the state of each block's mixer
    heads: dict[str, list[NGramState]]  # the sums of the n-gram heads, by the block they follow
    bottleneck: BottleneckState | None = None  # what the task's bottleneck keeps, if it has one

    def state_bytes(self) -> int:
        """Bytes that it holds now, for all streams together."""
        return held_bytes([self.mixers, self.heads, self.bottleneck])

    def ngram_sums(self) -> list[NGramState]:
        """The sums of all n-gram heads, also of those in mixers. They grow with the number of distinct n-grams."""
        parts = [*_parts(self.mixers), *_parts(self.heads)]
        return [part for part in parts if not isinstance(part, Tensor)]


def held_bytes(state: Any) -> int:
    """Bytes of the tensors and of the n-gram heads' sums in a state, nested in any way, for all streams together."""
    return sum(part.nbytes if isinstance(part, Tensor) else part.state_bytes() for part in _parts(state))


def _parts(state: Any) -> Iterator[Tensor | NGramState]:
    """The tensors and the n-gram heads' sums in a nest of mappings, sequences and dataclasses."""
    from regbench.ops.ngram import NGramState

    if isinstance(state, Tensor | NGramState):
        yield state
    elif isinstance(state, Mapping):
        yield from _parts(list(state.values()))
    elif isinstance(state, list | tuple):
        for part in state:
            yield from _parts(part)
    elif is_dataclass(state) and not isinstance(state, type):
        yield from _parts([getattr(state, part.name) for part in fields(state)])


class Backbone(Model):
    """The model of an architecture that is a token mixer."""

    takes = ("tokens", "vectors")

    def __init__(self, mixer: Callable[[Options], Mixer], options: Options, io: IO) -> None:
        """Makes the model. `mixer` makes the mixer of a block: it is called once for each, from the first to the last.

        A UserError if n-gram heads stand after a block that is not there, or their task is of vectors; or if the mixer has no
        `forward`, or is no module.
        """
        super().__init__(options, io)
        self.embedding = embedding(io, options.d_model)
        self.blocks = nn.ModuleList(Block(mixer(options), options) for _ in range(options.n_layers))
        if options.ngram_heads and max(options.ngram_after) > options.n_layers:
            raise UserError(f"ngram_after={max(options.ngram_after)} is past the last of {options.n_layers} blocks")
        places = sorted(set(options.ngram_after)) if options.ngram_heads else []
        self.ngram_heads = nn.ModuleDict()
        for place in places:
            from regbench.models.ngram_heads import NGramHeads  # here, as few models have them

            self.ngram_heads[str(place)] = NGramHeads(options.d_model, options.ngram_heads, options.ngram_mlp)
        reads = [block for block in self.blocks if block.mixer.reads_tokens]  # type: ignore[union-attr]
        if isinstance(io, VectorIO) and (places or reads):
            raise UserError("n-gram heads need tokens, and this task is one of vectors: leave them out")
        mixers: list[Mixer] = [block.mixer for block in self.blocks]  # type: ignore[misc]
        for layer, one in enumerate(mixers):
            _require_whole(one)
            one.place(layer)
        self._state_bytes = [one.state_bytes(one.options) for one in mixers]
        self.positions: nn.Embedding | None = None
        if any(one.learned_positions(one.options) for one in mixers):
            self.positions = position_embedding(io, options.d_model)
        self.norm = nn.LayerNorm(options.d_model)
        self.bottleneck = bottleneck(io, options.d_model)
        self.unembed = unembedding(io, options.d_model)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of every token: (B, L) int64 -> (B, L, V). Of vectors (B, L, D_in) -> (B, L, D_out).

        A UserError if there are more tokens than learned positions.
        """
        inputs = shift_in(tokens, self.io.separator)
        x = self.embedding(inputs)
        if self.positions is not None:
            length, longest = tokens.shape[1], self.positions.num_embeddings
            require_positions(length, longest)
            x = x + self.positions(torch.arange(length, device=tokens.device))
        x = self.dropout(x)
        reads = self.ngram_heads or any(block.mixer.reads_tokens for block in self.blocks)  # type: ignore[union-attr]
        index = None
        if reads:
            from regbench.ops.ngram import NGramIndex

            index = NGramIndex(inputs)
        for number, block in enumerate(self.blocks, 1):
            x = block(x, index)
            if str(number) in self.ngram_heads:
                x = self.ngram_heads[str(number)](x, index)
        x = self.norm(x)
        if self.bottleneck is not None:
            x, _ = self.bottleneck(x, inputs, self.bottleneck.init_state(len(x), x))
        logits: Tensor = self.unembed(x)
        return logits

    def init_state(self, batch: int) -> StreamState:
        """The state of `batch` streams before their first token. A UserError if the mixer has no recurrent form."""
        weight = self.embedding.weight
        mixers = []
        for block in self.blocks:
            try:
                mixers.append(block.init_state(batch, weight.device, weight.dtype))  # type: ignore[operator]
            except NotImplementedError:
                raise UserError(f"{type(block.mixer).__name__} has no recurrent form to stream by") from None
        heads = {place: heads.init_state() for place, heads in self.ngram_heads.items()}  # type: ignore[operator]
        one_vector = None if self.bottleneck is None else self.bottleneck.init_state(batch, weight)
        return StreamState(0, mixers, heads, one_vector)

    def step(self, inputs: Tensor, state: StreamState) -> tuple[Tensor, StreamState]:
        """The next token (B,) of each stream -> logits (B, V) of the one after it, and the state, which replaces the one given.

        The first token is the separator, as in `shift_in`. The logits are those of `forward`, but for rounding. There is no
        dropout. A UserError if there are more tokens than learned positions.
        """
        x = self.embedding(inputs)
        if self.positions is not None:
            require_positions(state.position + 1, self.positions.num_embeddings)
            x = x + self.positions.weight[state.position]
        mixers = []
        for number, (block, own) in enumerate(zip(self.blocks, state.mixers, strict=True), 1):
            x, after = block.step(x, own, inputs)  # type: ignore[operator]
            mixers.append(after)
            if str(number) in self.ngram_heads:
                x = self.ngram_heads[str(number)].step(x, inputs, state.heads[str(number)])  # type: ignore[operator]
        x, one_vector = self.norm(x), None
        if self.bottleneck is not None:
            assert state.bottleneck is not None
            decoded, one_vector = self.bottleneck(x[:, None], inputs[:, None], state.bottleneck)
            x = decoded[:, 0]
        return self.unembed(x), StreamState(state.position + 1, mixers, state.heads, one_vector)

    def state_bytes(self) -> int | None:
        """Bytes of recurrent state for one sequence in float32. None: it grows with L, or is not known, or has n-gram heads.

        The state of n-gram heads grows with the number of distinct n-grams. `StreamState.state_bytes` counts it.
        """
        if None in self._state_bytes or self.ngram_heads:
            return None
        mixers: int = sum(self._state_bytes)  # type: ignore[arg-type]
        for block in self.blocks:
            mixers += held_bytes(block.init_windows(1))  # type: ignore[operator]
        return mixers + (0 if self.bottleneck is None else self.bottleneck.state_bytes())


def _require_whole(mixer: Mixer) -> None:
    """Refuses a mixer that has no `forward`, or is no module."""
    name = type(mixer).__name__
    if "_modules" not in vars(mixer):
        raise UserError(f"{name}.__init__ must begin with super().__init__(options)")
    pairs = ((mixer.forward, Mixer.forward), (mixer.advance, Mixer.advance))
    if all(getattr(method, "__func__", None) is inherited for method, inherited in pairs):
        raise UserError(f"{name} has no forward(self, x), which maps x (B, L, D) to the same shape")


class VectorEmbedding(nn.Linear):
    """The embedding of vectors. Its output has the type of its weights, as that of a table: under autocast, too."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., D_in) -> (..., D)."""
        return super().forward(input).to(self.weight.dtype)


def embedding(io: IO, width: int) -> nn.Embedding | nn.Linear:
    """The map from tokens (B, L) to (B, L, D), D being `width`: a table of vectors, or for a task of vectors a linear map."""
    if isinstance(io, VectorIO):
        linear = VectorEmbedding(io.d_in, width)
        nn.init.normal_(linear.weight, std=0.02)
        nn.init.normal_(linear.bias, std=0.02)  # an input begins with a vector of zeros, which becomes this
        return linear
    table = nn.Embedding(io.vocab_size, width)
    nn.init.normal_(table.weight, std=0.02)
    return table


def unembedding(io: IO, width: int) -> nn.Linear:
    """The map from (B, L, D) to logits (B, L, V), or for a task of vectors to predictions (B, L, D_out). D is `width`."""
    linear = nn.Linear(width, io.width, bias=False)
    nn.init.normal_(linear.weight, std=0.02)
    return linear


def bottleneck(io: IO, width: int) -> Bottleneck | None:
    """The decoder of a task whose later tokens are predicted from one vector (`TokenIO.bottleneck`), else None."""
    if io.bottleneck is None:
        return None
    return Bottleneck(io.bottleneck, FeedForward(width), width, io.max_length)


def position_embedding(io: IO, width: int) -> nn.Embedding:
    """A learned vector (D,) for each position. They begin as sinusoids, as small as the embeddings of tokens."""
    positions = nn.Embedding(io.max_length, width)
    with torch.no_grad():
        positions.weight.copy_(sinusoids(io.max_length, width) * 0.02 * 2**0.5)
    return positions


def sinusoids(length: int, width: int) -> Tensor:
    """Sines and cosines (L, D). Wavelengths grow geometrically from 2 pi to 2 pi L (Vaswani et al. 2017, section 3.5)."""
    half = (width + 1) // 2
    frequency = float(length) ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1)[:, :width].float()
