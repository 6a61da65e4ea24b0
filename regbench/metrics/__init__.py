"""What a score is: metrics, their standard errors, and whether two scores differ."""
