"""Records in `statistics.json` what each built-in track generates: `python -m regbench.tracks.freeze`.

Run it when a track is added, never to change one. A recorded track that has changed is an error. Tracks whose instances depend
on the machine's text are left out.
"""

from __future__ import annotations

import json
import sys

from regbench.tracks.track import FROZEN_FILE, frozen_tracks, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


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
        print(f"{name}: {'unchanged' if record.get(name) == made else 'recorded'}")
        record[name] = made
    with atomic_write(FROZEN_FILE) as file:
        json.dump(dict(sorted(record.items())), file, indent=1)
        file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
