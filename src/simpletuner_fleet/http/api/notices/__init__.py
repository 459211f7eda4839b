"""Being told: endpoints of webhooks, mail, chats and the audit log."""
