"""vkinductor: torch.compile for every GPU that has a Vulkan driver."""
