"""Instances of a task, the random generator that makes them, and text as tokens."""
