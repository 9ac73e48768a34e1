"""The proof: a pytest plugin that judges a running host.

Usable alone: `pytest -p validator.plugin --hosts=ssh://user@address FILES`.
"""
