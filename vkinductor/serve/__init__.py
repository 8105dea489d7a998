"""A language model behind OpenAI's HTTP interface: `python -m vkinductor serve`.

Owns what lies between a socket and `llm.engine.Engine`: requests and their limits (schema.py, fields.py), prompts
(prompts.py), the queue and the one thread that generates (worker.py), where a text ends (generation.py), and
HTTP (app.py, endpoints.py, transport.py, server.py). Leaves loading, generating and text from tokens to `llm/`. The
packages of the extra `serve` (starlette, uvicorn, pydantic) are imported only by the modules of requests and of HTTP.
"""
