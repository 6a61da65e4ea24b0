"""Tasks: families of problem instances, one file each. Most know the true distributions of their tokens."""
