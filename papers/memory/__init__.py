"""Associative memories: numerical studies with exact oracles, and what the memories of a trained model recall."""
