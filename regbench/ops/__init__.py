"""Ops: the computations that mixers share, each with several implementations.

An op is a folder. Its modules, of which only the first two must be there:

    __init__.py   the public function, with its formula, shapes and paper. It checks the shapes and calls `OP.choose`.
    naive.py      the formula as it is written, in plain PyTorch: about 20 lines that are clearly right
    cpu.py        loops compiled by Numba, with the backward pass written out; `_numba.py` has what they share
    chunked.py    plain PyTorch on any device: parallel within a chunk of time, so that memory grows as L
    flash.py      the kernels of a library, which is imported in the function; mamba_ssm.py is such a module, too
    triton.py     GPU kernels of our own
    stream.py     one position at a time, for an op whose function cannot go on from a state

Each module has one function of the op's name. It takes what the public function has checked, and returns what that returns.
`OP` lists the implementations, the fastest first (`backend.py`). The tests compare each with `naive`: outputs, final state and
all gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regbench.ops.ngram import ngram_head as ngram_head


def __getattr__(name: str) -> Any:
    """`regbench.ops.ngram_head` is public; PyTorch is imported when it is asked for."""
    if name != "ngram_head":
        raise AttributeError(f"module 'regbench.ops' has no attribute '{name}'")
    from regbench.ops.ngram import ngram_head

    return ngram_head
