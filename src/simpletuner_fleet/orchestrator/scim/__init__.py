"""What a provider tells of its users and groups by SCIM changes who may do what here, in the transaction that notes it."""
