"""The only code that knows HTTP: OpenAI routes, error bodies, streaming. It adds no policy."""
