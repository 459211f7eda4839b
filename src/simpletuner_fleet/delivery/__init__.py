"""How messages reach people and programs elsewhere: webhooks, mail, chats and syslog, each spoken here."""
