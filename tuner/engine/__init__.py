"""The engine: it carries out decisions and records what comes of them."""
