"""The only code that writes money: accounts, holds, entries, and the accounts of shared budgets."""
