"""Running a graph of CPU tensors on the device: the graph is moved there, tensors cross at its edges."""
