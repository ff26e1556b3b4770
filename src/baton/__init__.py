"""Baton: an LLM serving stack that prefills on one engine and decodes on another.

`LLM` needs the extra "engine" (torch); it is imported when first used, so that torch-free parts stay light.
"""

from typing import TYPE_CHECKING, Any

from baton.core.sampling import Grammar, GrammarKind, SamplingParams

if TYPE_CHECKING:
    from baton.engine.llm import LLM

__all__ = ["LLM", "Grammar", "GrammarKind", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name == "LLM":
        from baton.engine.llm import LLM

        return LLM
    raise AttributeError(f"module 'baton' has no attribute {name!r}")
