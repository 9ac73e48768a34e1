"""Publishes a certified image: copies, sharing, SSM parameters, deprecation and retirement, region by region.

policy         the release policy: publish.yml
release        the image that is published, the tags that say so, and which older images are deprecated or retired
sharing        whom an AMI can be shared with, and which keys they may use
steps          what a region has, and the steps from there to what the policy says
record         publication.json: what was done, and what failed
publication    carries out the steps in all regions of a policy; points `latest` back to an image published before
"""
