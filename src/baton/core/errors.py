"""Every error Baton raises on purpose.

BatonError
├── UserError               the caller can mend it: one line, exit code 2
│   ├── ConfigError         an option or a combination of options
│   ├── ModelError          a model folder or file that cannot be served
│   └── RequestError        one request; names the parameter
└── EngineDeadError         the engine stopped; nothing more will come from it
"""


class BatonError(Exception):
    """Root of all errors that Baton raises on purpose."""


class UserError(BatonError):
    """The caller can mend it. The message is one line and says what to do."""


class ConfigError(UserError):
    """An option, or a combination of options, cannot work."""


class ModelError(UserError):
    """A model folder or file cannot be served: unsupported, incomplete or malformed."""


class RequestError(UserError):
    """A request is refused before it reaches the scheduler.

    Args:
        message: one line that says what is wrong and what would be right.
        param: name of the offending field, as in OpenAI's error body.
    """

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class EngineDeadError(BatonError):
    """The engine stopped on an internal error; the cause is chained."""
