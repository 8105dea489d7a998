"""Language models on the Vulkan device: load.py, the static KV cache (cache.py), the loop (generate.py).

Owns what happens between a model on disk and its tokens. Leaves the model's architecture and tokenizer to
`transformers`, which is imported on first use, and everything about compiling to the `vulkan` backend.
"""
