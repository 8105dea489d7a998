"""Language models on the Vulkan device: load.py, the static KV cache (cache.py), the loop (generate.py).

Owns what happens between a model on disk and its tokens, and the decoder that keeps a GGUF file's weights packed
(`load_gguf`). Leaves the models of directories and tokenizers to `transformers`, which is imported on first use, and
everything about compiling to the `vulkan` backend.
"""

from vkinductor.llm.gguf_model import load_gguf

__all__ = ["load_gguf"]
