"""Backends of the likelihood: what happens to a chunk of products between the matrix products."""
