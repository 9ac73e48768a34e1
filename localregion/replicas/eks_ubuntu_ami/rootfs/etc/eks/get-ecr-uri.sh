#!/bin/sh
# gpu-ami replica: the registry of a region's EKS images.
echo "602401143452.dkr.ecr.$1.${2:-amazonaws.com}"
