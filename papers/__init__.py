"""What belongs to a single paper: its analyses, its studies and its commands, a package for each paper."""
