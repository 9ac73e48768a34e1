#!/bin/sh
# gpu-ami replica of ParallelCluster's clean-up before an image is made.
rm -rf /tmp/* /var/tmp/*
