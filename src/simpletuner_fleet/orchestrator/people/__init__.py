"""Manages people and programs as callers: accounts, passwords, logins and API tokens."""
