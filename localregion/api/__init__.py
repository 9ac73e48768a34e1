"""The HTTP API of the local region.

account              settings of the account: calls that read them, launches and shares that they forbid
application          moto's WSGI application, with EC2 calls carried out on machines before they are answered
conditions           how the region differs from one where every call succeeds (localregion/conditions/*.yml)
launch_checks        what EC2 refuses of a launch, and moto accepts
layer                applies conditions to calls and lists; calls that moto does not answer (SSM, ECS, EKS)
permissions          judges calls by the IAM policies of the caller: actions, resources, condition keys
protocol             AWS's wire protocols: the call in a request, errors; EC2's filters and values
"""

from localregion.api import conditions
from localregion.api.account import AccountLayer, AccountSettings
from localregion.api.application import Api
from localregion.api.layer import ConditionsLayer, EksLayer, JsonLayer
from localregion.api.permissions import Authorization

__all__ = [
    "AccountLayer", "AccountSettings", "Api", "Authorization", "ConditionsLayer", "EksLayer", "JsonLayer", "conditions",
]  # fmt: skip
