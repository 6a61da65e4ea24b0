"""MesaNet: linear attention that solves its regression at every position."""

from __future__ import annotations

from typing import Any, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from architectures._delta_mixer import start_small, unit, without_weight_decay
from regbench.models import mixer
from regbench.models.heads import full, head_width, join_heads, split_heads
from regbench.models.short_conv import ShortConv
from regbench.ops.linear_attention import linear_attention
from regbench.ops.linear_attention.chunked import reader

State = tuple[Tensor, Tensor, Tensor]
"""The last d_conv - 1 inputs of the convolution (B, d_conv - 1, 2 D), and H and G (B, heads, K, K)."""

LEAST = 0.25
"""The least regularisation, Lambda."""

TINY = 1e-30

ROUNDINGS = 4
"""So many roundings, relative to the right-hand side, are as good as no residual."""


class MesaNet(mixer.Mixer):
    """The Mesa layer. von Oswald et al. 2025, Eq. 5 and section 3.

        q, k    = SiLU(conv(query(x))), SiLU(conv(key(x))), of length 1 in each head;  v = value(x)
        g, beta = log sigmoid(forget(x)), sigmoid(write(x))                one each for a head
        H_t     = exp(g_t) H_{t-1} + beta_t k_t^T k_t
        G_t     = exp(g_t) G_{t-1} + beta_t k_t^T v_t
        y_t     = out(norm(q_t (H_t + Lambda)^-1 G_t))                     Lambda is diagonal, at least 0.25, and begins at 1

    With `solver=cg` the solution is that of so many steps of conjugate gradients, for all positions at once: H_t x_t is linear
    attention with queries x and values beta k. Its gradient is that of the solution itself, which takes the same steps once
    more. `solver=exact` solves each position's system; it keeps H of all positions.
    """

    class Options(mixer.Options):
        """The options of MesaNet."""

        n_heads: int = Field(default=1, ge=1, description="heads of each mixer")
        d_conv: int = Field(default=4, ge=1, description="width of the convolution of queries and keys")
        solver: Literal["cg", "exact"] = Field(default="cg", description="how each position's system is solved")
        cg_steps: int = Field(default=30, ge=1, description="steps of conjugate gradients")

        @model_validator(mode="after")
        def _no_steps_without_conjugate_gradients(self) -> Self:
            if self.solver == "exact" and self.cg_steps != type(self).model_fields["cg_steps"].default:
                raise ValueError("cg_steps is about solver=cg, and the solver is exact: leave it out")
            return self

    family = "delta rule"
    paper = mixer.Paper(
        "MesaNet: Sequence Modeling by Locally Optimal Test-Time Training",
        "von Oswald et al.",
        2025,
        arxiv="2506.05233",
    )
    compiles = False  # the gradient of the solution is taken within a backward pass

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        d_model, n_heads = options.d_model, options.n_heads
        head_width(d_model, n_heads)
        self.n_heads = n_heads
        self.query, self.key, self.value, self.out = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.conv = ShortConv(2 * d_model, options.d_conv)
        self.forget, self.write = (nn.Linear(d_model, n_heads) for _ in range(2))
        start = torch.tensor(1 - LEAST).expm1().log()  # what softplus maps to 1 - LEAST
        self.regularisation = without_weight_decay(start.repeat(d_model))
        self.norm = nn.RMSNorm(d_model // n_heads, eps=1e-5)
        start_small(self.query, self.key, self.value, self.forget, self.write, self.out)

    def init_state(self, batch: int, device: torch.device | None = None, dtype: torch.dtype | None = None) -> State:
        """The state before the first position: zeros."""
        width = self.options.d_model // self.n_heads
        zeros = torch.zeros(batch, self.n_heads, width, width, device=device, dtype=dtype)
        return self.conv.init_window(batch, device, dtype), zeros, zeros

    def advance(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """(B, L, D) -> (B, L, D) from `state` on, and the state after it."""
        window, H, G = state
        mixed, window = self.conv(torch.cat([self.query(x), self.key(x)], dim=-1), window)
        q, k = (unit(split_heads(part, self.n_heads)) for part in F.silu(mixed).chunk(2, dim=-1))
        v = full(split_heads(self.value(x), self.n_heads))
        log_decay = F.logsigmoid(full(self.forget(x))).mT  # (B, heads, L)
        written = full(self.write(x)).sigmoid().mT[..., None] * k
        ridge = (F.softplus(self.regularisation) + LEAST).view(self.n_heads, 1, -1)
        if self.options.solver == "exact":
            solved, H = solve_exactly(q, k, written, log_decay, ridge, H)
        else:
            with torch.autocast(x.device.type, enabled=False):
                solved, H = ConjugateGradients.apply(q, k, written, log_decay, ridge, H, self.options.cg_steps)
        z, G = linear_attention(solved, written, v, log_decay, G)
        y: Tensor = self.out(join_heads(self.norm(full(z))))
        return y, (window, H, G)

    @classmethod
    def state_bytes(cls, options: Any) -> int:
        """H, G and the window."""
        return 4 * (2 * options.d_model**2 // options.n_heads + (options.d_conv - 1) * 2 * options.d_model)


def solve_exactly(
    q: Tensor, k: Tensor, written: Tensor, log_decay: Tensor, ridge: Tensor, H: Tensor
) -> tuple[Tensor, Tensor]:
    """(H_t + Lambda)^-1 q_t for all t, a position at a time, and H after the last.

    Shapes as in `ConjugateGradients`.
    """
    solved = []
    for q_t, k_t, written_t, g_t in zip(*(part.unbind(2) for part in (q, k, written, log_decay)), strict=True):
        H = g_t.exp()[..., None, None] * H + written_t[..., None] * k_t[..., None, :]
        solved.append(torch.linalg.solve(H + torch.diag_embed(ridge[:, 0]), q_t))
    return torch.stack(solved, dim=2), H


class ConjugateGradients(torch.autograd.Function):
    """(H_t + Lambda)^-1 q_t for all t, and H after the last. Their gradient is the exact solution's: no step is kept for it."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, written: Tensor, log_decay: Tensor, ridge: Tensor, H: Tensor, steps: int
    ) -> tuple[Tensor, Tensor]:
        """The solution (B, heads, L, K), and H after the last position.

        Args:
            ctx: what waits for the backward pass.
            q: (B, heads, L, K), the right-hand sides.
            k: (B, heads, L, K), the keys.
            written: (B, heads, L, K), beta k.
            log_decay: (B, heads, L).
            ridge: (heads, 1, K), the diagonal of Lambda.
            H: (B, heads, K, K), before the first position.
            steps: how many.
        """
        solved, final = conjugate_gradients(q, k, written, log_decay, ridge, H, steps)
        ctx.save_for_backward(k, written, log_decay, ridge, H, solved)
        ctx.steps = steps
        return solved, final

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dsolved: Tensor, dfinal: Tensor) -> tuple[Tensor | None, ...]:
        """Of x = M^-1 q: the gradient of q is M^-1 times that of x, and that of M is its product with -x."""
        k, written, log_decay, ridge, H, solved = ctx.saved_tensors
        dq, _ = conjugate_gradients(dsolved, k, written, log_decay, ridge, H, ctx.steps)
        with torch.enable_grad():
            inputs = [part.detach().requires_grad_() for part in (k, written, log_decay, H)]
            outputs = linear_attention(solved, *inputs)
            dk, dwritten, dlog, dH = torch.autograd.grad(outputs, inputs, (-dq, dfinal))
        return dq, dk, dwritten, dlog, -(dq * solved).sum((0, 2))[:, None], dH, None


def conjugate_gradients(
    q: Tensor, k: Tensor, written: Tensor, log_decay: Tensor, ridge: Tensor, H: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """The method of Hestenes and Stiefel (1952) from zero, for all positions at once; and H after the last position.

    Shapes as in `ConjugateGradients`. Every step multiplies with the same H: it is linear attention with other queries.

    On a CPU it ends before `steps` where all residuals are as small as roundings: more steps would not change what they solve.
    On a GPU the question would wait for the answer of every step.
    """
    # A gradient may be so small that its square underflows. So the right-hand side is scaled to one.
    scale = q.abs().amax(-1, keepdim=True).clamp(min=TINY)
    direction = residual = q / scale
    solved, size = torch.zeros_like(q), residual.square().sum(-1, keepdim=True)
    enough = size * (ROUNDINGS * torch.finfo(q.dtype).eps) ** 2
    read, final = reader(k, written, log_decay, H)
    for _ in range(steps):
        image = read(direction).addcmul_(ridge, direction)
        along = size / (direction * image).sum(-1, keepdim=True).clamp(min=TINY)
        solved, residual = solved.addcmul(along, direction), residual.addcmul(along, image, value=-1)
        before, size = size, residual.square().sum(-1, keepdim=True)
        if q.device.type == "cpu" and bool((size <= enough).all()):
            break
        direction = residual.addcmul(size / before.clamp(min=TINY), direction)
    return solved * scale, final
