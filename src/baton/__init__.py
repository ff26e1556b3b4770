"""Baton: an LLM serving stack that prefills on one engine and decodes on another."""
