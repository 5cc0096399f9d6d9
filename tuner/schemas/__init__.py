"""Request and answer models of the REST API, shared by the service and the client. They define shapes only and contain no rules."""
