"""What things would cost, said before money is spent or after: pure."""
