"""Records in `statistics.json` what each built-in track generates: `python -m regbench.tracks.freeze`.

Run it when a track is added, never to change one. A recorded track that has changed is an error. Tracks whose instances depend
on the machine's text are left out.
"""

from __future__ import annotations

import sys

from regbench.tracks.track import FROZEN_FILE, frozen_tracks, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import write_json


def main() -> int:
    """Adds the tracks that are not recorded yet, and checks the others against their record. Returns the exit code."""
    record = dict(frozen_tracks())
    for name in track_names():
        try:
            track = load_track(name)
            if not track.task.portable:
                print(f"{name}: not recorded: its text differs from machine to machine")
                continue
            made = track.freeze()
        except UserError as error:
            print(f"regbench: {error}", file=sys.stderr)
            return 2
        if record.get(name, made) != made:
            print(f"regbench: {name} makes something else than its record in {FROZEN_FILE.name}", file=sys.stderr)
            return 2
        print(f"{name}: {'unchanged' if name in record else 'recorded'}")
        record[name] = made
    write_json(FROZEN_FILE, dict(sorted(record.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
