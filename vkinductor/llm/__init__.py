"""Language models on the Vulkan device: loading, the static key/value cache, and generation.

`generate` gives the text that follows a prompt, `stream` gives it in pieces; `generator_engine.GeneratorEngine` is for
many prompts. Owns what happens between a model on disk and its tokens. Leaves the architecture of a directory's model
and tokenizers to `transformers`, which is imported on first use, and everything about compiling to the `vulkan`
backend.
"""

# The function stands in front of the module of its name, which is imported as `from vkinductor.llm.generate import`.
from vkinductor.llm.generate import generate, stream

__all__ = ["generate", "stream"]
