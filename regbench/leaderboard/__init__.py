"""The leaderboard: what an entry is, how one is submitted, how anyone verifies it, and how entries are ranked."""

from regbench.leaderboard.entry import Entry, InstanceScores

__all__ = ["Entry", "InstanceScores"]
