"""OpenAI's HTTP bodies as typed structs: what clients send (read leniently) and what they get back."""
