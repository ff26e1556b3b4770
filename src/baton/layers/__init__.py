"""Layers of a transformer, written for any tensor-parallel degree; no model, no cache policy."""
