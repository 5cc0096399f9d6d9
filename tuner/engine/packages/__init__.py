"""Packages of user code that were uploaded: looked at, kept by their digest, and unpacked where they are used."""
