"""The HTTP API of the local region.

application          moto's WSGI application, with EC2 calls carried out on machines before they are answered
authorization        judges calls by the IAM policies of who makes them
conditions           how the region differs from one where every call succeeds (localregion/conditions/*.yml)
eks                  calls of EKS, and reviews of its tokens
layer                applies conditions to calls and lists; calls of Systems Manager and ECS that moto does not answer
permissions          the authorizations that a call needs: actions, resources, condition keys
protocol             AWS's wire protocols: the call in a request, errors
request_model  filters and enumerated values that EC2 has, from botocore's model
"""

from localregion.api import conditions
from localregion.api.application import Api
from localregion.api.authorization import Authorization
from localregion.api.eks import EksLayer
from localregion.api.layer import ConditionsLayer, JsonLayer

__all__ = [
    "Api", "Authorization", "ConditionsLayer", "EksLayer", "JsonLayer", "conditions",
]  # fmt: skip
