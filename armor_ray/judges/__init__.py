"""LLM judges over any OpenAI-compatible endpoint. This room knows neither Ray nor the workspace.

`client.py` asks (cache, budget, pacing, retries), `judge.py` runs a judge over many things, one module per judge says what to ask.
"""
