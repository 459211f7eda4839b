"""Serves HTTP: identifies the caller, checks what they may do, reads the request and answers.

It has no rules about jobs.
"""
