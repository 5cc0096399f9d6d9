"""The page: static files that speak REST and server-sent events like any other client. Empty until it is built."""
