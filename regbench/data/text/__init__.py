"""Text as tokens: sources of documents, their splits, byte-pair encoding and the cache of tokens."""
