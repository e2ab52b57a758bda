"""Errors a user can cause. Every message is one line: what was expected, what was given, what to do.

    DraftproofError
    ├── OptionError       an option or parameter has no meaning or an impossible value
    ├── PromptError       a prompt that cannot be run (empty, longer than the context)
    ├── ModelError        a model that cannot be loaded or cannot be run exactly
    │   └── VocabularyError   target and drafter do not share a vocabulary
    ├── DrafterError      a drafter broke its contract (too many tokens, a law that is none, ...)
    ├── TrainingError     a training run that cannot go on, or data that does not belong to it
    ├── FetchError        a model that could not be fetched, checked or stored
    └── ServerError       a server that cannot be reached or answers with something else

The command line prints the message alone and exits with status 2.
"""


class DraftproofError(ValueError):
    """Base class of every error caused by input; the message is one complete line."""


class OptionError(DraftproofError):
    """An unknown option, or a value outside its range."""


class PromptError(DraftproofError):
    """A prompt that cannot be run."""


class ModelError(DraftproofError):
    """A model folder that is missing, damaged, unsafe, or of a kind that cannot be run exactly."""


class VocabularyError(ModelError):
    """Target and drafter number their tokens differently."""


class DrafterError(DraftproofError):
    """A drafter answered with something that is no draft for the request."""


class TrainingError(DraftproofError):
    """A training run that cannot start, go on or be continued, or data of another target."""


class FetchError(DraftproofError):
    """A model could not be fetched, its hash is wrong, or it could not be stored."""


class ServerError(DraftproofError):
    """Another server could not be reached, refused a request or answered with something unexpected."""
