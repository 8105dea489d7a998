"""Looking at what the compiler makes of a model (``explain``), and checking what its kernels compute."""
