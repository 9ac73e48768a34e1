"""Amazon ECS of the local region: container instances and tasks. Clusters and task definitions are moto's.

An instance's agent (localregion/replicas/ecs_ami) registers it, asks for what it has to run, and sends what became
of it. moto 5.2 has no DiscoverPollEndpoint, drops the resources and attributes of a container instance, and its tasks
run at once and have no exit code.

actions       the actions of the API, as dictionaries in and out
instances     container instances: registration, resources, the cluster query language as far as it is used here;
              tasks: placement on one instance, states, exit codes

Source: the description of the API in botocore (RegisterContainerInstance, ContainerInstance, StartTask, Task, Failure,
StopTask, SubmitTaskStateChange, DeleteCluster), read 2026-11-25. The pages of the ECS developer guide that it refers to
("API failure reasons", "Cluster query language") were not read in full, and nothing was compared with AWS: the reasons
INACTIVE and RESOURCE:GPU are assumed; AGENT is from treasure-data/digdag#1723. AWS's agent gets its tasks over a
WebSocket of the endpoint that DiscoverPollEndpoint names (Agent Communication Service, permission ecs:Poll); here it
asks with an action ecs:Poll at the same endpoint as all others.
"""

from localregion.backends.container_service.actions import ContainerService

__all__ = ["ContainerService"]
