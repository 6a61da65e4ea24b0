"""Predictions and what follows from them: scores of baselines, comparisons, score regression."""
