"""What every room may use: errors, files, threads, the registry, the cache, types of arrays."""
