"""Text from a language model with the decode loop of vkinductor.llm, piece by piece.

Run it as `python examples/generate.py [PROMPT]`; the model is SmolLM2-135M from the wheel that `make demo` installs.
"""

import sys

import vkinductor
from vkinductor import llm
from vkinductor.llm import load
from vkinductor.llm.sampling import SamplingOptions

prompt = sys.argv[1] if len(sys.argv) > 1 else "Name three primary colours."
loaded = load.load()
model = loaded.model.to("vulkan")
options = SamplingOptions(tokens=40, stop=loaded.stop_tokens)

print("compiling two graphs, one for the prompt and one for each further token ...", flush=True)
for piece in llm.stream(model, loaded.tokenizer, prompt, options):
    print(piece, end="", flush=True)
print(f"\n\non {vkinductor.device_name()}")
