"""AWS: where a plan is carried out, and every call to its API.

amis         AMIs of running builders; images of layers, by the digest in their tags; what uses an AMI
aws_errors   AWS's error codes as errors with a hint and an exit code
capacity     subnets and ways of a place, tried in order until one has capacity
client       the EC2 API: launch, watch and terminate instances, read images
ecs          clusters of ECS: look-up, a run's own one, what runs leave there
eks          clusters of EKS: who may join, their Kubernetes API
image_parameters  SSM parameters that name an AMI
kms          keys that sign
launches     what a launch asks RunInstances for: network interfaces, and the cluster that machines of a run join; what
             ends it at its expiry from outside
launch_templates  the same as launch templates
log_groups   log groups of a proof: names, listing, deletion
login        how SSH gets to an instance: addresses, jump host, tunnels; the key pair of a run
place        the place of a run: an AWS region as a `--where` file describes it, or the local region; its MFA session
placement_groups  cluster placement groups of machines that work together
policies     IAM policies: whether statements allow an action on a resource
preflight/   examines a place before anything is launched
resources    tagged resources of a place: lists and removes them
runs         runs of this program on this machine: id, temporary key, record
security_groups  who may connect to an instance
sweep        removes what interrupted runs left
systems_manager  machines in service that Systems Manager manages, commands on many of them, documents
"""

from gpu_ami.cloud.client import Cloud, preload, tags_of
from gpu_ami.cloud.launches import RUN_ATTRIBUTE, Cluster, Launch, RootVolume
from gpu_ami.cloud.place import (
    SESSION_MANAGER,
    ApiAccess,
    Capacity,
    Clusters,
    Credentials,
    Login,
    MachineTraits,
    Mirror,
    Network,
    Place,
    load_place,
    place_of,
    takes,
    unknown_region,
    with_session_credentials,
)
from gpu_ami.cloud.runs import PlaceFile, Run
from gpu_ami.cloud.sweep import key_name

__all__ = [
    "RUN_ATTRIBUTE",
    "SESSION_MANAGER",
    "ApiAccess",
    "Capacity",
    "Cloud",
    "Cluster",
    "Clusters",
    "Credentials",
    "Launch",
    "Login",
    "MachineTraits",
    "Mirror",
    "Network",
    "Place",
    "PlaceFile",
    "RootVolume",
    "Run",
    "key_name",
    "load_place",
    "place_of",
    "preload",
    "tags_of",
    "takes",
    "unknown_region",
    "with_session_credentials",
]
