"""Typed errors of the language-model layer. Every message names the thing and says what to do about it."""


class ModelError(ValueError):
    """Base of everything that can be wrong with a model, a prompt or a generation option."""


class ModelNotFoundError(ModelError):
    """The path does not exist, or the default model is not installed."""


class ModelFormatError(ModelError):
    """The file or directory is there, but holds nothing that can be loaded as a causal language model."""


class UnsupportedModelError(ModelError):
    """The model loads, but needs what the decode loop does not do (sliding-window attention, an encoder)."""


class PromptTooLongError(ModelError):
    """Prompt and requested tokens together do not fit into the model's context."""


class PromptRefusedError(ModelError):
    """The model's chat template does not take this conversation."""


class UnknownOptionError(ModelError):
    """A dtype, device or backend name that is not one of the known ones; the message lists those."""


class MissingDependencyError(ModelError):
    """A package of the `demo` extra is not installed."""
