"""The HTTP front of one engine: validates, tokenises, streams. Never imports the engine or torch."""
