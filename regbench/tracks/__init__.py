"""Tracks: frozen, versioned evaluation settings, one YAML file each. `statistics.json` records what they generate.

A track is never edited after results exist. A change makes a new version.
"""

from regbench.tracks.track import SPLITS, Budget, Definition, Track, load_track, track_file, track_names, track_of_run

__all__ = ["SPLITS", "Budget", "Definition", "Track", "load_track", "track_file", "track_names", "track_of_run"]
