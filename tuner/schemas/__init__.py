"""Words on the wire, shared by the REST face and the client: shapes, no rules."""
