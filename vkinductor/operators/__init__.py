"""Operators that users add (in PyTorch or in GLSL), and the list of what the device supports.

``register`` declares them to torch and to the code generator, ``entry`` is what is kept of one, ``fingerprint`` names
its content for the caches, ``supported`` lists all operators.
"""
