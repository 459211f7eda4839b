"""Manages notifications: endpoints of webhooks, mail, chats and the audit log."""
