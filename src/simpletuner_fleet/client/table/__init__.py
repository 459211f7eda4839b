"""The server's route table as the client has it.

Drawn by `./dev client` from the server's route table. Do not edit: change the routes and draw again.
"""
