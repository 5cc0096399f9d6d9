"""Faults in real processes, drawn from a seed, and a checker that recomputes everything from outside. `python -m tests.chaos`.

plan (seed) ──▶ strikes ──▶ deployment: services, Ray, PostgreSQL, S3, behind proxies
                               ▲
customers: submit, follow ─────┘──▶ history ──▶ checker ◀── reading (REST, database read-only, processes)
"""
