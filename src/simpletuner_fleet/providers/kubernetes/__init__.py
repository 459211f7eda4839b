"""Provides machines that are pods of a Kubernetes cluster: each is a `batch/v1` Job whose container is the worker."""
