"""Machines that are pods of a Kubernetes cluster: each is one `batch/v1` Job whose container is the worker."""
