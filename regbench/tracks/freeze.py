"""Records what each built-in track generates in `statistics.json`: run once when a track is added, never to change one.

`python -m regbench.tracks.freeze`; a track that is recorded already and has changed is refused. Tracks whose instances depend
on the machine's text are passed by.
"""

from __future__ import annotations

import json
import sys

from regbench.tracks.track import FROZEN_FILE, frozen_tracks, load_track, track_names
from regbench.utils.errors import UserError
from regbench.utils.files import atomic_write


def main() -> int:
    """Adds the tracks that are not recorded yet; checks the others against their record."""
    record = dict(frozen_tracks())
    for name in track_names():
        try:
            track = load_track(name)
            if not track.task.portable:
                print(f"{name}: not recorded: its text is another on every machine")
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
