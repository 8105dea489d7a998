"""The torch device "vulkan", in Python alone: tensors over device memory, copies, eager operators, random
numbers, autocast.

`registration.register()` makes torch know it. Higher layers use `storage.empty`, `storage.nbytes_range`,
`copies.to_device`, `copies.to_host`, the two hooks in `hooks`, and `registry.registry.open()` for the device
itself. Nothing is imported here: a layer imports the module it needs.
"""
