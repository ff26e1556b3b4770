"""The call of a request that names its function: the whole text is the arguments."""

from __future__ import annotations

from baton.server.tools.deltas import Delta, DeltaWriter, MakeId, random_call_id


class ForcedCallParser:
    """See `parser.ToolParser`. `choice.tool_grammar` holds the text to the function's JSON schema."""

    def __init__(self, name: str, make_id: MakeId = random_call_id) -> None:
        self._name = name
        self._out = DeltaWriter(make_id)
        self._begun = False

    def push(self, text: str) -> list[Delta]:
        if text and not self._begun:
            self._begun = True
            self._out.call(self._name)
        if text:
            self._out.arguments(text)
        return self._out.take()

    def finish(self) -> list[Delta]:
        return self._out.take()
