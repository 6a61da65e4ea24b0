"""Text as tokens: where documents come from, their division into splits, byte-pair encoding, and the packed cache."""
