"""Chaos tests: inject faults drawn from a seed into real processes, then recompute all results from outside.
Run with `python -m tests.chaos`.

plan (seed) ──▶ strikes ──▶ deployment: services, Ray, PostgreSQL, S3, behind proxies
                               ▲
customers: submit, follow ─────┘──▶ history ──▶ checker ◀── reading (REST, database read-only, processes)
"""
