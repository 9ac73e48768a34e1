"""Amazon ECS of the local region: container instances and tasks. Clusters and task definitions are moto's.

An instance's agent (gpu_ami/local/replicas/ecs_ami) registers it, asks for what it has to run, and sends what became
of it. moto 5.2 has no DiscoverPollEndpoint, drops the resources and attributes of a container instance, and its tasks
run at once and have no exit code.

service       the actions of the API, as dictionaries in and out
instances     container instances: registration, resources, the cluster query language as far as it is used here
tasks         tasks: placement on one instance, states, exit codes

Sources: ECS API reference (RegisterContainerInstance, ContainerInstance, StartTask, Task, Failure, StopTask,
SubmitTaskStateChange, DeleteCluster), ECS developer guide ("API failure reasons", "Cluster query language"), read
2026-11-25. AWS's agent gets its tasks over a WebSocket of the endpoint that DiscoverPollEndpoint names (Agent
Communication Service, permission ecs:Poll); here it asks with an action ecs:Poll at the same endpoint as all others.
"""

from gpu_ami.local.backends.container_service.service import ContainerService

__all__ = ["ContainerService"]
