"""The leaderboard: the schema of entries, their submission, verification and ranking, and the tables and the page."""

from regbench.leaderboard.entry import Entry, InstanceScores

__all__ = ["Entry", "InstanceScores"]
