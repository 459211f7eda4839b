"""Delivers messages to people and other programs: by webhooks, mail, chats and syslog."""
