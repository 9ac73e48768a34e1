"""Publishes a certified image: copies, sharing, SSM parameters, deprecation and retirement, region by region.

policy         the release policy: publish.yml
"""
