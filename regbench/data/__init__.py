"""Instances of a task, the random generator that makes them, and text as tokens."""

from regbench.data.instances import Instances

__all__ = ["Instances"]
