"""The command line: everything goes over the client, so that it shows what REST would; `serve` and `demo` start the service."""
