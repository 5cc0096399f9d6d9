"""Rows and queries of everything that is recorded: jobs, trials, reports, access, and the answers made from them."""
