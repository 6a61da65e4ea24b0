"""Tasks: generator families whose truth is known, one file each."""
