"""What faults are judged by: a proxy that harms connections, the faults that a seed draws, a history, and a checker that recomputes
everything from outside."""
