"""The error body that every client library of OpenAI's API reads."""

from __future__ import annotations

import msgspec

BAD_REQUEST = "BadRequestError"
AUTHENTICATION = "AuthenticationError"
NOT_FOUND = "NotFoundError"
METHOD_NOT_ALLOWED = "MethodNotAllowedError"
TOO_LARGE = "RequestTooLargeError"
UNPROCESSABLE = "UnprocessableEntityError"
RATE_LIMIT = "RateLimitError"
INTERNAL = "InternalServerError"
UNAVAILABLE = "ServiceUnavailableError"
TIMEOUT = "TimeoutError"


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong.

    Attributes:
        param: dotted path of the offending field, such as "messages.0.content".
        code: the HTTP status, as vLLM sends it.
    """

    message: str
    type: str
    param: str | None = None
    code: int


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Body of every answer with status 4xx or 5xx, and of the event that ends a broken stream."""

    error: ErrorInfo
