"""Ports: mailboxes that programs open themselves."""
