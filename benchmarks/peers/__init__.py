"""Other programs that compute with Vulkan, beside us on the same driver: `python -m benchmarks.peers`."""
