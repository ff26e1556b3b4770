"""The nouns of Baton. Imports nothing else of the package and never torch."""
