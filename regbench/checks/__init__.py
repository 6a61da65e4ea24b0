"""The contracts that architectures, tasks and baselines must satisfy before anything is scored."""
