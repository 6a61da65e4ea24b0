"""Tasks: generator families with the truth where it can be known, one file each."""
